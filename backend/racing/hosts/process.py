"""Runs races in a supervised worker process, so that a crash in native code takes down a race only.

The app process never loads a model. A worker that dies fails its running columns with a sentence
and is replaced at once, the new one loading the usual model before anyone asks.
"""

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import ModuleType

from backend.errors import explain
from backend.events import Event, Failed, Finished, from_json, to_json
from backend.grammar.grammars import Grammars
from backend.racing.commands import Command, all_stopped, run_to_end
from backend.racing.hosts.host import POLL, turn
from backend.racing.loading import Loading
from backend.racing.models import LoadedModels
from backend.strategies.column import default_column
from backend.types import ModelSpec

log = logging.getLogger(__name__)

#: Asks the worker to end what it does.
STOP = "stop"

#: Columns whose models a new worker loads before anyone asks.
WARM = ("speculative",)

#: Seconds that one call of the grammar engine may take; most take less than a thousandth of one.
GRAMMAR_DEADLINE = 10.0

#: A worker that has not acknowledged a stop by then is replaced: Stop is promised within a second.
STOP_GRACE = 0.7


class ProcessHost:
    """`warm` are loaded whenever a worker starts, in that order."""

    def __init__(self, warm: tuple[ModelSpec, ...] = ()) -> None:
        self._warm = warm
        self._one_at_a_time = threading.Lock()
        self._closed = False
        self._start()

    @property
    def pid(self) -> int:
        """Process id of the current worker."""
        return self._process.pid or 0

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_work, args=(theirs, self._warm), name="race worker", daemon=True
        )
        with _no_main_module():
            self._process.start()
        theirs.close()
        threading.Thread(target=self._supervise, args=(self._process,), daemon=True).start()

    def _supervise(self, process: BaseProcess) -> None:
        """Replace a worker that died between races; during one, `_run` does."""
        wait([process.sentinel])  # not join(): whoever needs the exit code reaps it
        with self._one_at_a_time:
            if self._process is process and not self._closed:
                self._restart()

    def _restart(self) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()
        if not self._closed:  # a race may end only after the host
            self._start()

    def stream(self, command: Command, stopped: Callable[[], bool]) -> Iterator[Event]:
        with turn(self._one_at_a_time, stopped) as mine:
            if not mine:
                yield from all_stopped(command)
                return
            if not self._process.is_alive():
                self._restart()
            open_columns = set(range(command.width))
            yield from self._run(command, stopped, open_columns)

    def _run(
        self, command: Command, stopped: Callable[[], bool], open_columns: set[int]
    ) -> Iterator[Event]:
        deadline = float("inf")
        acknowledged = False
        try:
            self._connection.send(command)
            while True:
                if stopped() and deadline == float("inf"):
                    deadline = time.monotonic() + STOP_GRACE
                    self._connection.send(STOP)
                if time.monotonic() > deadline:
                    yield from (Finished(column, "stopped", []) for column in sorted(open_columns))
                    return
                if not self._connection.poll(POLL):
                    continue
                message = self._connection.recv()
                if message is None:
                    acknowledged = True
                    return
                event = from_json(message)
                if isinstance(event, Finished | Failed):
                    open_columns.discard(event.column)
                yield event
        except (EOFError, OSError):
            self._process.join()
            log.warning("the worker process died (%s)", _cause(self._process.exitcode))
            sentence = (
                f"The worker process died ({_cause(self._process.exitcode)}); a new one is "
                "starting, so run the race again."
            )
            yield from (Failed(column, sentence) for column in sorted(open_columns))
        finally:
            if not acknowledged:
                self._settle(min(deadline, time.monotonic() + STOP_GRACE))

    def _settle(self, deadline: float) -> None:
        """Leave the worker idle: wait until then for a race nobody reads to end, or replace it."""
        with contextlib.suppress(EOFError, OSError):
            self._connection.send(STOP)
            while self._connection.poll(max(0.0, deadline - time.monotonic())):
                if self._connection.recv() is None:
                    return
        self._restart()

    def close(self) -> None:
        self._closed = True
        self._process.kill()
        self._process.join()
        self._connection.close()


@contextlib.contextmanager
def _no_main_module() -> Iterator[None]:
    """Keep a spawned process from importing the program that starts it, page, gradio and all."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _cause(exitcode: int | None) -> str:
    if exitcode == -signal.SIGALRM:
        return f"a grammar took longer than {GRAMMAR_DEADLINE:g} s"
    if exitcode is not None and exitcode < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-exitcode).name
    return f"exit code {exitcode}"


def _work(connection: Connection, warm: tuple[ModelSpec, ...]) -> None:
    """The worker's life: load what is usually wanted, then run races one after another."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    threading.Thread(target=_die_with_parent, daemon=True).start()
    models = LoadedModels(idle_warm_up=True, grammars=Grammars(GRAMMAR_DEADLINE))
    for spec in warm:
        if connection.poll():
            break  # somebody waits: what their race needs comes first
        try:
            loading = Loading(models, log.info)
            loading.prepare([default_column(name) for name in WARM], spec)
        except Exception as error:
            explain(error)
    while True:
        while not connection.poll() and models.warm_up():
            pass
        try:
            message = connection.recv()
        except EOFError:
            return
        if message != STOP:
            _carry_out(message, models, connection)
            connection.send(None)


def _carry_out(command: Command, models: LoadedModels, connection: Connection) -> None:
    stop = False

    def stopped() -> bool:
        nonlocal stop
        while not stop and connection.poll():
            stop = connection.recv() == STOP
        return stop

    def emit(event: Event) -> None:
        connection.send(to_json(event))

    run_to_end(command, models, emit, stopped)


def _die_with_parent() -> None:
    multiprocessing.parent_process().join()  # type: ignore[union-attr]
    os._exit(0)
