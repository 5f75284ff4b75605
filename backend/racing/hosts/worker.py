"""A worker process: what it does itself, and how the app talks to it and watches over it.

Threads of their own do its pipe, so that nobody who races waits for what it does, or does not do.
It has one deadline, from when it is asked to stop: if it goes on after that, it is killed. Beside
that it is watched for being halted, and for doing nothing.
"""

import contextlib
import json
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from queue import Empty, SimpleQueue
from typing import Any, Literal

from backend.errors import explain
from backend.events import Event, Preparing, from_json, to_json
from backend.grammar.grammars import GrammarCompiler, Grammars
from backend.limits import Limits
from backend.processes import die_with_parent, spawn
from backend.racing.commands import Command, run_to_end
from backend.racing.hosts.host import POLL
from backend.racing.ledger import used
from backend.racing.loading import Loading, Say
from backend.racing.models import LoadedModels
from backend.strategies.column import parse_column
from backend.strategies.registry import DEFAULT_COLUMNS
from backend.types import ModelSpec

log = logging.getLogger(__name__)

#: Asks the worker to end its command.
STOP = "stop"

#: What a worker says beside events: it takes commands (before that it says in `Preparing` what it
#: still does); it has received one; that one has ended; and the thread that carries it out goes on,
#: though nothing happens.
READY, BEGUN, ENDED, BEAT = "ready", "begun", "ended", "beat"

#: Seconds between two beats.
BEAT_PERIOD = 1.0

#: Seconds that a worker has to end a command that it is asked to stop: Stop is promised within one.
STOP_GRACE = 0.7

#: Seconds between two looks at a worker.
LOOK = 1.0

#: Looks in a row that find a process halted before it is lost: with Ctrl-Z and `fg` the whole app
#: is halted, and its processes go on one after another.
HALTED_LOOKS = 3

#: Looks in a row at a worker that has something to do, says nothing and uses no processor time,
#: before it is lost. Whoever waits for a lock on a file uses more than that.
STILL_LOOKS = 120

#: Seconds of processor time that count as work: two ticks of the clock that it is measured with.
WORK = 0.02

#: Seconds that one call of the grammar engine may take; most take less than a thousandth of one.
GRAMMAR_DEADLINE = 10.0

#: Seconds that the threads of a process that has died may take to notice.
_FAREWELL = 5.0


@dataclass(frozen=True, slots=True)
class Death:
    """Why a worker ended: for its operator a kind, which is counted; for its visitors `why`, which
    goes into a sentence, in brackets.
    """

    kind: Literal["stop", "halted", "hung", "grammar", "killed", "crashed", "not started", "closed"]
    why: str


STOPPED_LATE = Death("stop", "it did not stop in time")
HALTED = Death("halted", "SIGSTOP: it was halted from outside")
HUNG = Death("hung", f"it did nothing for {STILL_LOOKS * LOOK:g} s")
CLOSED = Death("closed", "the app is ending")


def death_by(exitcode: int | None) -> Death:
    """What a process died of that ended by itself, or by somebody else."""
    if exitcode is None or exitcode >= 0:
        return Death("crashed", f"exit code {exitcode}")
    if exitcode == -signal.SIGALRM:
        return Death("grammar", f"a grammar took longer than {GRAMMAR_DEADLINE:g} s")
    if exitcode == -signal.SIGKILL:
        return Death(
            "killed",
            "SIGKILL: most likely the memory ran out; use fewer columns, fewer tokens or a "
            "smaller model",
        )
    name = f"signal {-exitcode}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-exitcode).name
    return Death("crashed", name)


class WorkerDiedError(Exception):
    """The worker is gone, and everything that it had said was heard."""


class Worker:
    """One process, from its start to its end. `watch_over` is for one thread, the rest for any.

    `preparing` is what it does before it is `ready`, in its words; it then takes commands, one
    after another. `begun`: it received the last one. `lost`: it takes none any more, and if it is
    not dead yet it soon will be. `blame` is what it was killed for, `death` what it died of.
    """

    def __init__(self, warm: tuple[ModelSpec, ...], limits: Limits) -> None:
        """Start a process. `warm` are loaded before it is ready."""
        self.ready, self.lost = threading.Event(), threading.Event()
        self.preparing = ""
        self.begun = False
        self.carried_out = 0
        self.blame: Death | None = None
        self.death: Death | None = None
        self._busy = True
        self._deadline = inf
        self._signs = 0
        self._to_say: SimpleQueue[Any] = SimpleQueue()
        self._said: SimpleQueue[Any] = SimpleQueue()
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=work, args=(theirs, warm, limits), name="race worker", daemon=True
        )
        try:
            spawn(self._process)
        except Exception as error:  # no memory for a process, say
            log.exception("a worker process could not be started")
            self.death = Death("not started", f"{type(error).__name__}: {error}")
        theirs.close()

    @property
    def pid(self) -> int:
        """Its process id; 0 if there is none."""
        return self._process.pid or 0

    def watch_over(self) -> Death:
        """Watch over the process until it is dead, and leave nothing of it: why it died."""
        threads = [
            threading.Thread(target=target, name="race worker's talk", daemon=True)
            for target in (self._speak, self._listen)
        ]
        for thread in threads:
            thread.start()
        if self.death is None:
            self.death = self._until_dead()
        self.lost.set()
        self._to_say.put(None)
        for thread in threads:
            thread.join(_FAREWELL)
        if not any(thread.is_alive() for thread in threads):
            self._connection.close()
        self._said.put(None)
        return self.death

    def _until_dead(self) -> Death:
        watch = Watch()
        while not wait([self._process.sentinel], LOOK):
            idle = self.ready.is_set() and not self._busy
            found = watch.look(
                halted=halted(self.pid), idle=idle, signs=self._signs, used=lambda: used(self.pid)
            )
            if found and not self.lost.is_set():
                self.kill(found)
        self._process.join()
        found = death_by(self._process.exitcode)
        return self.blame if self.blame and found.kind == "killed" else found

    def kill(self, death: Death) -> None:
        """End it, whatever it does."""
        self.blame = self.blame or death
        self.lost.set()
        if self.pid:
            self._process.kill()

    def begin(self, command: Command) -> None:
        """Give it a command. It must be ready, and its last command must have ended."""
        data = ForkingPickler.dumps(command)
        self.begun, self._busy, self._deadline = False, True, inf
        self._to_say.put(data)

    def stop(self) -> None:
        """Have it end its command in STOP_GRACE from the first time that this is called."""
        if self._deadline == inf:
            self._deadline = time.monotonic() + STOP_GRACE
            self._to_say.put(ForkingPickler.dumps(STOP))

    def hear(self) -> Any:
        """What it says next: an event as JSON, or ENDED; None if nothing comes for a moment.

        Raises WorkerDiedError; a worker that goes on after its deadline is killed.
        """
        if self._busy and time.monotonic() > self._deadline:
            self.kill(STOPPED_LATE)
            raise WorkerDiedError
        try:
            message = self._said.get(timeout=POLL)
        except Empty:
            return None
        if message is None:
            self._said.put(None)  # for whoever asks again
            raise WorkerDiedError
        return message

    def settle(self) -> None:
        """Leave it idle, or dead: stop its command, and wait for the end of it."""
        self.stop()
        with contextlib.suppress(WorkerDiedError):
            while self.hear() != ENDED:
                pass

    def _speak(self) -> None:
        while (data := self._to_say.get()) is not None:
            try:
                self._connection.send_bytes(data)
            except OSError:  # it is dead, as `watch_over` finds
                return

    def _listen(self) -> None:
        try:
            while True:
                self._take(json.loads(self._connection.recv_bytes()))
        except (EOFError, OSError):  # it is dead, as `watch_over` finds
            return
        except ValueError:
            log.exception("the worker process said what is no message")
            self.kill(Death("crashed", "it said what is no message"))

    def _take(self, message: Any) -> None:
        self._signs += 1
        if message == READY:
            self._busy, self.preparing = False, ""
            self.ready.set()
        elif message == BEGUN:
            self.begun = True
        elif isinstance(message, dict) and not self.ready.is_set():
            event = from_json(message)
            self.preparing = event.text if isinstance(event, Preparing) else self.preparing
        elif message != BEAT:
            if message == ENDED:
                self._busy = False
                self.carried_out += 1
            self._said.put(message)


class Watch:
    """Finds a worker that will never do anything again, and leaves alone one that works without a
    word: models are loaded and converted for minutes in native code that lets no thread of the
    interpreter run, and what tells work from a deadlock is the processor time used.

    It counts looks and not seconds: that the computer slept, or the app itself was halted, is no
    fault of the worker's.
    """

    def __init__(self) -> None:
        self._halted = 0
        self._still = 0
        self._signs = 0
        self._used = 0.0

    def look(
        self, *, halted: bool, idle: bool, signs: int, used: Callable[[], float | None]
    ) -> Death | None:
        """What the worker is lost by, None while it is not. `signs`: how much it has said so far,
        `used`: its seconds of processor time, None if they cannot be seen.
        """
        self._halted = self._halted + 1 if halted else 0
        if self._halted >= HALTED_LOOKS:
            return HALTED
        said, self._signs = signs != self._signs, signs
        self._still = 0 if idle or said or self._worked(used()) else self._still + 1
        return HUNG if self._still >= STILL_LOOKS else None

    def _worked(self, used: float | None) -> bool:
        """Whether it has worked since this was last true."""
        if used is None:
            return True
        if worked := abs(used - self._used) >= WORK:  # less: of a child that ended
            self._used = used
        return worked


def halted(pid: int) -> bool:
    import psutil

    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False


def resident(pid: int) -> int:
    """Bytes of memory that a process holds; 0: unknown."""
    import psutil

    try:
        return psutil.Process(pid).memory_info().rss if pid else 0
    except psutil.Error:
        return 0


def work(connection: Connection, warm: tuple[ModelSpec, ...], limits: Limits) -> None:
    """The life of the process: load what is usually wanted, then carry out the commands that come,
    until the app closes its end or is gone.

    The app gets JSON: nothing that native code may have spoilt is ever unpickled there.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells of every request
    models = LoadedModels(
        idle_warm_up=True,
        grammars=Grammars(GRAMMAR_DEADLINE),
        limits=limits,
    )

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
            say(connection, BEGUN)
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
    """Tell the app an event as JSON, or one of READY, BEGUN, ENDED and BEAT."""
    connection.send_bytes(json.dumps(message).encode())


def _carry_out(command: Command, models: LoadedModels, connection: Connection) -> None:
    stop = False
    beat = time.monotonic()

    def stopped() -> bool:
        nonlocal stop, beat
        while not stop and connection.poll():
            stop = connection.recv() == STOP
        if time.monotonic() > beat + BEAT_PERIOD:
            beat = time.monotonic()
            say(connection, BEAT)
        return stop

    def emit(event: Event) -> None:
        say(connection, to_json(event))

    run_to_end(command, models, emit, stopped)


def _exit_with_parent() -> None:
    """End with the app where the kernel does not see to it."""
    multiprocessing.parent_process().join()  # type: ignore[union-attr]
    os._exit(0)
