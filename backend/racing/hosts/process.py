"""Runs races in a supervised worker process, so that a crash in native code takes down a race only.

The app process never loads a model. A worker that dies, is halted or hangs fails its running
columns with a sentence and is replaced at once, the new one loading the usual model before anyone
asks.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator

from backend.errors import DerbyError
from backend.events import Event, Preparing, from_json
from backend.limits import PRIVATE, Limits
from backend.racing.commands import Command, all_stopped, ending
from backend.racing.hosts.host import POLL, HostFacts, held
from backend.racing.hosts.worker import (
    CLOSED,
    ENDED,
    STOPPED_LATE,
    Death,
    Worker,
    WorkerDiedError,
    resident,
)
from backend.types import ModelSpec

log = logging.getLogger(__name__)

#: Seconds before the next start after one that came to nothing, doubled with each more, and their
#: bound. A race does not wait for them to pass.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0

ENDING = "The app is ending: start it again to run races."

#: What a worker prepares that has not said anything yet.
STARTING = "Starting the process that runs races..."

#: Workers that may die before they take a race, before it is refused.
TRIES = 2


def pause(vain: int) -> float:
    """Seconds before the next start after so many in a row that came to nothing."""
    return min(FIRST_PAUSE * 2 ** min(vain - 1, 30), LONGEST_PAUSE) if vain else 0.0


class ProcessHost:
    """`warm` are loaded whenever a worker starts, in that order. `limits` bound what it keeps."""

    def __init__(self, warm: tuple[ModelSpec, ...] = (), limits: Limits = PRIVATE) -> None:
        self._one_at_a_time = threading.Lock()
        self._closed = threading.Event()
        self._wanted = threading.Event()  # a worker, by a race
        self._stillborn = 0  # workers that died before they were ready, ever
        self._vain = 0  # starts in a row that came to nothing
        self._why = ""  # the last one died
        self._restarts: Counter[str] = Counter()
        self._start = lambda: Worker(warm, limits)
        self._worker = self._start()
        self._supervisor = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
        self._supervisor.start()

    @property
    def pid(self) -> int:
        """Process id of the current worker, which may be dead; 0 if it could not be started."""
        return self._worker.pid

    def facts(self) -> HostFacts:
        worker = self._worker
        up = worker.ready.is_set() or self._closed.is_set()
        preparing = "" if up else worker.preparing or STARTING
        return HostFacts(dict(self._restarts), resident(self.pid), preparing)

    def _supervise(self) -> None:
        """Keep a worker alive until the host is closed."""
        while True:
            worker = self._worker
            if self._closed.is_set():  # while this one was started
                worker.kill(CLOSED)
            death = worker.watch_over()
            if self._closed.is_set():
                return
            log.warning("the worker process died (%s)", death.why)
            self._count(worker, death)
            self._wanted.wait(pause(self._vain))
            self._wanted.clear()
            self._worker = self._start()

    def _count(self, worker: Worker, death: Death) -> None:
        self._restarts[death.kind] += 1
        self._why = death.why
        ready = worker.ready.is_set()
        vain = not ready or (death.kind == "crashed" and not worker.carried_out)
        self._vain = self._vain + 1 if vain else 0
        self._stillborn += not ready

    def stream(self, command: Command, stopped: Callable[[], bool]) -> Iterator[Event]:
        with held(self._one_at_a_time, stopped) as mine:
            if mine:
                yield from ending(range(command.width), self._carried_out(command, stopped))
            else:
                yield from all_stopped(command)

    def _carried_out(
        self, command: Command, stopped: Callable[[], bool]
    ) -> Generator[Event, None, None]:
        """Have a worker carry out the command; if it dies before it knows of it, another one, once.

        Ends early if it is stopped. Raises DerbyError if no worker can.
        """
        for last in (False, True):
            worker = yield from self._ready(stopped)
            if worker is None:
                return
            try:
                yield from _said(worker, command, stopped)
            except WorkerDiedError:
                if self._closed.is_set():
                    raise DerbyError(ENDING, cause="worker") from None
                if worker.blame is STOPPED_LATE:
                    return
                if worker.begun or last:
                    why = worker.death.why if worker.death else "unknown"
                    raise DerbyError(
                        f"The worker process died ({why}); a new one is starting, so run the race "
                        "again.",
                        cause="worker",
                    ) from None
            else:
                return

    def _ready(self, stopped: Callable[[], bool]) -> Generator[Event, None, Worker | None]:
        """A worker that takes commands, and until then what it prepares; None if `stopped()` comes
        first.

        Raises DerbyError if the host is closed, or workers die as soon as they are started.
        """
        stillborn, said = self._stillborn, ""
        while not stopped():
            worker = self._worker
            if self._closed.is_set():
                raise DerbyError(ENDING, cause="worker")
            if self._stillborn - stillborn >= TRIES:
                raise DerbyError(
                    f"The worker process fails to start ({self._vain} times in a row, last: "
                    f"{self._why}): see the app's log for the cause, or run the race "
                    "later.",
                    cause="worker",
                )
            if worker.lost.is_set():
                self._wanted.set()
                self._closed.wait(POLL)
            elif worker.ready.wait(POLL):
                return worker
            elif (text := worker.preparing) and text != said:
                said = text
                yield Preparing(text)
        return None

    def close(self) -> None:
        self._closed.set()
        self._wanted.set()
        self._worker.kill(CLOSED)
        self._supervisor.join()


def _said(worker: Worker, command: Command, stopped: Callable[[], bool]) -> Iterator[Event]:
    """Give a command to a worker, and yield what comes of it. Raises WorkerDiedError.

    However this ends, the worker is idle then, or dead.
    """
    message = None
    worker.begin(command)
    try:
        while (message := worker.hear()) != ENDED:
            if stopped():
                worker.stop()
            if message is not None:
                yield from_json(message)
    finally:
        if message != ENDED:
            worker.settle()
