"""Runs races in a worker process, so that a crash in native code takes down a race only.

The app's process never loads a model. A worker that dies fails its running columns with a sentence,
one that does not stop in time is killed, and a new one loads the usual model before anyone asks.
"""

import contextlib
import json
import logging
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from math import inf
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from types import MappingProxyType
from typing import Any

from backend.errors import DerbyError, explain
from backend.events import Event, Preparing, from_json, to_json
from backend.grammar.grammars import GrammarCompiler, Grammars
from backend.limits import PRIVATE, Limits
from backend.models.files import give_titles
from backend.processes import die_with_parent, spawn
from backend.racing.commands import Command, all_stopped, ending, run_to_end
from backend.racing.hosts.host import POLL, held
from backend.racing.loading import Loading, Say
from backend.racing.models import LoadedModels
from backend.strategies.column import parse_column
from backend.strategies.registry import DEFAULT_COLUMNS
from backend.types import ModelSpec

log = logging.getLogger(__name__)

#: Asks the worker to end its command.
STOP = "stop"

#: What a worker says beside events: it takes commands, and its command has ended.
READY, ENDED = "ready", "ended"

#: Seconds that a worker has to end a command that it is asked to stop: Stop is promised within one.
STOP_GRACE = 0.7

#: Seconds that one call of the grammar engine may take; most take less than a thousandth of one.
GRAMMAR_DEADLINE = 10.0

#: What a worker prepares that has not said anything yet.
STARTING = "Starting the process that runs races..."


def cause_of_death(exitcode: int | None) -> str:
    """What a process died of, for a sentence."""
    if exitcode is None or exitcode >= 0:
        return f"exit code {exitcode}"
    if exitcode == -signal.SIGPROF:
        return f"a grammar took longer than {GRAMMAR_DEADLINE:g} s"
    if exitcode == -signal.SIGKILL:
        return (
            "SIGKILL: most likely the memory ran out; use fewer columns, fewer tokens or a "
            "smaller model"
        )
    with contextlib.suppress(ValueError):
        return signal.Signals(-exitcode).name
    return f"signal {-exitcode}"


class Worker:
    """A process, and what it says: events as JSON and ENDED in `messages`, None once it is dead.

    `preparing` is what it does before it is `ready`; `death` what it died of, "" while it lives.
    """

    def __init__(
        self, warm: tuple[ModelSpec, ...], limits: Limits, titles: Mapping[str, str]
    ) -> None:
        self.messages: SimpleQueue[Any] = SimpleQueue()
        self.ready = threading.Event()
        self.preparing, self.death = STARTING, ""
        context = multiprocessing.get_context("spawn")
        self._connection, self._theirs = context.Pipe()
        arguments = (self._theirs, warm, limits, titles)
        self.process = context.Process(target=work, args=arguments, name="worker", daemon=True)

    def live(self, closed: threading.Event) -> None:
        """Start the process and read what it says until it is dead."""
        try:
            spawn(self.process)
            self._theirs.close()
            if closed.is_set():  # while it was started
                self.kill()
            with contextlib.suppress(EOFError, OSError):
                while True:
                    self._take(json.loads(self._connection.recv_bytes()))
            self.process.join()
            self.death = cause_of_death(self.process.exitcode)
        except Exception as error:  # no memory for a process, or what it said is no message
            log.exception("a worker process failed")
            self._theirs.close()
            self.kill()
            self.death = f"{type(error).__name__}: {error}"
        self._connection.close()
        self.messages.put(None)

    def _take(self, message: Any) -> None:
        if message == READY:
            self.preparing = ""
            self.ready.set()
        elif self.ready.is_set():
            self.messages.put(message)
        elif isinstance(event := from_json(message), Preparing):
            self.preparing = event.text

    def send(self, message: Command | str) -> None:
        with contextlib.suppress(OSError):  # it is dead, as its reader finds
            self._connection.send(message)

    def settle(self) -> None:
        """Stop its command and wait for the end of it; kill it if that takes too long."""
        self.send(STOP)
        deadline = time.monotonic() + STOP_GRACE
        while True:
            with contextlib.suppress(Empty):
                if self.messages.get(timeout=POLL) in (ENDED, None):
                    return
            if time.monotonic() > deadline:
                self.kill()

    def kill(self) -> None:
        """End it, whatever it does."""
        if self.process.pid:
            self.process.kill()


class ProcessHost:
    """`warm` are loaded whenever a worker starts, in that order. `limits` say what it may fetch,
    and `titles` what its models' names stand for, here and there; see `give_titles`.
    """

    def __init__(
        self,
        warm: tuple[ModelSpec, ...] = (),
        limits: Limits = PRIVATE,
        titles: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        give_titles(titles)  # whoever reads a form asks how large a model is
        self._one_at_a_time = threading.Lock()
        self._closed = threading.Event()
        self._wanted = threading.Event()  # a worker, by a race
        self._new = lambda: Worker(warm, limits, dict(titles))
        self._worker = self._new()
        # The kernel ends a worker with the thread that started it: this one lasts.
        self._reader = threading.Thread(target=self._read, name="worker's reader", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Process id of the current worker, which may be dead; 0: it was not started yet."""
        return self._worker.process.pid or 0

    @property
    def preparing(self) -> str:
        return self._worker.preparing

    def _read(self) -> None:
        """Have one worker after another, until the host is closed."""
        while True:
            self._worker.live(self._closed)
            if not self._closed.is_set():
                log.warning("the worker process died (%s)", self._worker.death)
                if not self._worker.ready.is_set():  # the next may die so, too: a race tries it
                    self._wanted.clear()
                    self._wanted.wait()
            if self._closed.is_set():
                return
            self._worker = self._new()

    def stream(self, command: Command, stopped: Callable[[], bool]) -> Iterator[Event]:
        with held(self._one_at_a_time, stopped) as mine:
            if mine:
                yield from ending(range(command.width), self._carried_out(command, stopped))
            else:
                yield from all_stopped(command)

    def _carried_out(
        self, command: Command, stopped: Callable[[], bool]
    ) -> Generator[Event, None, None]:
        """The events of a command; ends early if it is stopped. Raises DerbyError if the worker
        dies, or cannot be started.
        """
        worker = yield from self._ready(stopped)
        if worker is None:
            return
        message, deadline = None, inf
        worker.send(command)
        try:
            while True:
                if deadline == inf and stopped():
                    worker.send(STOP)
                    deadline = time.monotonic() + STOP_GRACE
                if time.monotonic() > deadline:
                    worker.kill()
                    deadline = time.monotonic() + 2**20  # its death is near
                try:
                    message = worker.messages.get(timeout=POLL)
                except Empty:
                    continue
                if message == ENDED or (message is None and deadline < inf):
                    return
                if message is None:
                    raise self._died(worker, "died", "a new one is starting, so run the race again")
                yield from_json(message)
        finally:
            if message != ENDED and not worker.death:
                worker.settle()

    def _ready(self, stopped: Callable[[], bool]) -> Generator[Event, None, Worker | None]:
        """A worker that takes commands, and until then what it prepares; None if `stopped()` comes
        first. Raises DerbyError if it dies before.
        """
        worker, sentence = self._worker, ""
        while worker.death and not self._closed.is_set() and not stopped():
            self._wanted.set()
            time.sleep(POLL)
            worker = self._worker
        while not stopped():
            if worker.death or self._closed.is_set():
                raise self._died(worker, "fails to start", "see the app's log, or try again later")
            if worker.ready.wait(POLL):
                return worker
            if worker.preparing != sentence:
                sentence = worker.preparing
                yield Preparing(sentence)
        return None

    def _died(self, worker: Worker, how: str, remedy: str) -> DerbyError:
        if self._closed.is_set():
            return DerbyError("The app is ending: start it again to run races.", cause="worker")
        return DerbyError(f"The worker process {how} ({worker.death}); {remedy}.", cause="worker")

    def close(self) -> None:
        self._closed.set()
        self._wanted.set()
        self._worker.kill()
        self._reader.join()


def work(
    connection: Connection,
    warm: tuple[ModelSpec, ...],
    limits: Limits,
    titles: Mapping[str, str],
) -> None:
    """The life of a worker: load what is usually wanted, then carry out the commands that come,
    until the app closes its end or is gone.

    The app gets JSON: nothing that native code may have spoilt is ever unpickled there.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells of every request
    give_titles(titles)
    models = LoadedModels(idle_warm_up=True, grammars=Grammars(GRAMMAR_DEADLINE), limits=limits)

    def prepare(text: str) -> None:
        log.info(text)
        say(connection, to_json(Preparing(text)))

    for spec in warm:
        try:
            _prepare_usual(models, spec, prepare)
        except Exception as error:
            log.warning("%s", explain(error))  # races say so too, after another try
    say(connection, READY)
    while True:
        while not connection.poll() and models.warm_up():
            pass
        try:
            message = connection.recv()
        except (EOFError, OSError):
            return
        if message != STOP:
            _carry_out(message, models, connection)
            say(connection, ENDED)


def _prepare_usual(models: LoadedModels, spec: ModelSpec, say: Say) -> None:
    """Make ready what the first race usually asks for."""
    loading = Loading(models, say)
    columns = [parse_column(name) for name in DEFAULT_COLUMNS]
    loading.prepare(columns, spec)
    grammars = GrammarCompiler(models.grammars, loading.engine(spec).tokenizer)
    grammars.prepare(*(column.grammar for column in columns if column.grammar))


def say(connection: Connection, message: Any) -> None:
    """Tell the app an event as JSON, or READY or ENDED."""
    connection.send_bytes(json.dumps(message).encode())


def _carry_out(command: Command, models: LoadedModels, connection: Connection) -> None:
    stop = False

    def stopped() -> bool:
        nonlocal stop
        while not stop and connection.poll():
            stop = connection.recv() == STOP
        return stop

    run_to_end(command, models, lambda event: say(connection, to_json(event)), stopped)
