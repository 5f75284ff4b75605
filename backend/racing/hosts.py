"""The places where races run: a host runs a race and emits its events, and nobody cares how.

On the thread that asks, or in a worker process that may crash alone.
"""

import contextlib
import json
import logging
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from types import MappingProxyType
from typing import Any

from backend.errors import DerbyError
from backend.events import Event, Failed, Finished, Preparing, failures, from_json, to_json
from backend.limits import PRIVATE, Limits
from backend.models.files import give_titles
from backend.processes import die_with_parent, spawn
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.strategies.column import parse_column
from backend.strategies.registry import DEFAULT_COLUMNS
from backend.types import ModelSpec, Request

#: Seconds between two looks at whether a race was stopped.
POLL = 0.05

#: Asks the worker to end its race.
STOP = "stop"

#: What a worker says beside events: it takes races, and its race has ended.
READY, ENDED = "ready", "ended"

#: Seconds that a worker has to end what it does when it is asked to: its pass, of which those of a
#: large model take many, and what loads a model, which knows nothing of Stop and may take minutes.
PASS_GRACE, LOAD_GRACE = 30.0, 0.7

Emit = Callable[[Event], None]
Stopped = Callable[[], bool]


class Host:
    """Runs one race at a time, on the thread that asks: a second one waits. Thread-safe."""

    def __init__(self, models: LoadedModels | None = None) -> None:
        self._lock, self._models = threading.Lock(), models or LoadedModels()

    def run(self, race: Race, emit: Emit, stopped: Stopped) -> None:
        """Run a race to its end or, once `stopped()`, that of its pass. Every column ends in
        Finished or Failed, each once, whatever happens. `emit` is not to raise.
        """
        running = dict.fromkeys(range(len(race.columns)))

        def note(event: Event) -> None:
            if isinstance(event, Finished | Failed):
                running.pop(event.column, None)
            emit(event)

        try:
            with self._lock:
                self._run(race, note, stopped)
            ends = [Finished(column, "stopped", []) for column in running]
        except Exception as error:
            ends = failures(running, error)
        for event in ends:
            emit(event)

    def _run(self, race: Race, emit: Emit, stopped: Stopped) -> None:
        """Run it, alone. A column without an end was stopped. Raises what fails those."""
        race.run(self._models, emit, stopped)


log = logging.getLogger(__name__)


def cause_of_death(exitcode: int | None) -> str:
    """What a process died of, for a sentence."""
    if exitcode is None or exitcode >= 0:
        return f"exit code {exitcode}"
    if exitcode == -signal.SIGKILL:
        return (
            "SIGKILL: most likely the memory ran out; use fewer columns, fewer tokens or a "
            "smaller model"
        )
    return signal.Signals(-exitcode).name


class ProcessHost(Host):
    """Runs races in a worker. The `warm` models are loaded whenever one starts, in that order.
    `limits` say what it may fetch, and `titles` what its models' names stand for, here and there;
    see `give_titles`.
    """

    def __init__(
        self,
        warm: tuple[ModelSpec, ...] = (),
        limits: Limits = PRIVATE,
        titles: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        give_titles(titles)  # whoever reads a form asks how large a model is
        self._arguments = (warm, limits, dict(titles))
        self._closed = False
        self._start()

    @property
    def pid(self) -> int:
        """Of the current worker, which may be dead."""
        return self._process.pid or 0

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        arguments = (theirs, *self._arguments)
        self._process = context.Process(target=work, args=arguments, name="worker", daemon=True)
        self._ready = self._running = False
        with theirs:
            spawn(self._process)

    def _replace(self) -> str:
        """End the worker and start another; what the old one died of."""
        self._process.kill()
        self._process.join()
        cause = cause_of_death(self._process.exitcode)
        self._connection.close()
        if not self._closed:
            self._start()
        return cause

    def _run(self, race: Race, emit: Emit, stopped: Stopped) -> None:
        """Raises DerbyError if the worker dies."""
        if not self._process.is_alive():
            self._replace()
        while not self._ready:  # a stop costs nobody the models that are being loaded
            if stopped():
                return
            self._receive(emit)
        self._send(race)
        self._running, self._loading = True, False
        while self._running and not stopped():
            self._receive(emit)
        if self._running:
            self._send(STOP)
            latest = time.monotonic() + (LOAD_GRACE if self._loading else PASS_GRACE)
            with contextlib.suppress(DerbyError):  # it was to end
                while self._running and time.monotonic() < latest:
                    self._receive(emit)
        if self._running:
            self._replace()

    def _send(self, message: Race | str) -> None:
        with contextlib.suppress(OSError):  # it is dead, as `_receive` finds
            self._connection.send(message)

    def _receive(self, emit: Emit) -> None:
        """Emit the worker's next event, if one comes soon. Raises DerbyError if it died: another
        one is started.
        """
        try:
            if not self._connection.poll(POLL):
                return
            message = json.loads(self._connection.recv_bytes())
            self._ready |= message == READY
            self._running &= message != ENDED
            event = None if message in (READY, ENDED) else from_json(message)
        except (EOFError, OSError, ValueError) as error:
            how, remedy = "fails to start", "see the app's log, or try again later"
            if self._ready:
                how, remedy = "died", "a new one is starting, so run the race again"
            sentence = f"The worker process {how} ({self._replace()}); {remedy}."
            log.warning(sentence)
            if self._closed:
                sentence = "The app is ending: start it again to run races."
            raise DerbyError(sentence) from error
        if event is not None:
            self._loading = isinstance(event, Preparing)
            emit(event)

    def close(self) -> None:
        """End whatever runs; no race runs afterwards."""
        self._closed = True
        self._process.kill()
        self._process.join()


def work(
    connection: Connection,
    warm: tuple[ModelSpec, ...],
    limits: Limits,
    titles: Mapping[str, str],
) -> None:
    """The life of a worker: load what is usually wanted, then run the races that come, until the
    app closes its end or is gone.

    The app gets JSON: nothing that native code may have spoilt is ever unpickled there.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request
    give_titles(titles)
    models = LoadedModels(idle_warm_up=True, limits=limits)
    host, stop = Host(models), False

    def emit(event: Event) -> None:
        send(connection, to_json(event))

    def stopped() -> bool:
        nonlocal stop
        while not stop and connection.poll():
            stop = connection.recv() == STOP
        return stop

    for spec in warm:
        _prepare(host, spec, emit)
    send(connection, READY)
    with contextlib.suppress(EOFError, OSError):
        while True:
            while not connection.poll() and models.warm_up():
                pass
            if (race := connection.recv()) != STOP:
                stop = False
                host.run(race, emit, stopped)
                send(connection, ENDED)


def _prepare(host: Host, spec: ModelSpec, emit: Emit) -> None:
    """Load what a first race usually asks for, by a short one of which nothing but that is said."""

    def note(event: Event) -> None:
        if isinstance(event, Preparing):
            log.info(event.text)
            emit(event)
        elif isinstance(event, Failed):  # races say so too, after another try
            log.warning(event.message)

    race = Race(Request("Hello", 2), tuple(map(parse_column, DEFAULT_COLUMNS)), spec)
    host.run(race, note, lambda: False)


def send(connection: Connection, message: Any) -> None:
    """Send the app an event as JSON, or READY or ENDED."""
    connection.send_bytes(json.dumps(message).encode())
