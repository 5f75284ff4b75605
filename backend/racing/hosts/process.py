"""Runs races in a worker process, so that a crash in native code takes down a race only.

The app's process never loads a model. A worker that dies fails its running columns with a sentence,
one that does not stop in time is killed, and a new one gets ready for the next race.
"""

import contextlib
import json
import logging
import multiprocessing
import signal
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from functools import partial
from multiprocessing.connection import Connection
from types import MappingProxyType
from typing import Any

from backend.errors import DerbyError
from backend.events import Event, Preparing, from_json, to_json
from backend.grammar.constraint import end_process_after
from backend.limits import PRIVATE, Limits
from backend.models.files import give_titles
from backend.processes import die_with_parent, from_lasting_thread, spawn
from backend.racing.hosts.host import POLL, Command, Stopped, one_at_a_time, run_to_end, with_ends
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.strategies.column import parse_column
from backend.strategies.registry import DEFAULT_COLUMNS
from backend.types import ModelSpec, Request

log = logging.getLogger(__name__)

#: Asks the worker to end its command.
STOP = "stop"

#: What a worker says beside events: it takes commands, and its command has ended.
READY, ENDED = "ready", "ended"

#: Seconds that a worker has to end a command that it is asked to stop: Stop is promised within one.
STOP_GRACE = 0.7

#: Seconds that one call of the grammar engine may take; most take less than a thousandth of one.
GRAMMAR_DEADLINE = 10.0


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


class ProcessHost:
    """The `warm` models are loaded whenever a worker starts, in that order. `limits` say what it
    may fetch, and `titles` what its models' names stand for, here and there; see `give_titles`.
    """

    def __init__(
        self,
        warm: tuple[ModelSpec, ...] = (),
        limits: Limits = PRIVATE,
        titles: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        give_titles(titles)  # whoever reads a form asks how large a model is
        self._arguments = (warm, limits, dict(titles))
        self._lock = threading.Lock()  # whoever has it reads what the worker says
        self._closed = False
        self._start()

    @property
    def pid(self) -> int:
        """Process id of the current worker, which may be dead."""
        return self._process.pid or 0

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        arguments = (theirs, *self._arguments)
        self._process = context.Process(target=work, args=arguments, name="worker", daemon=True)
        self._ready = self._running = False
        with theirs:
            from_lasting_thread(partial(spawn, self._process))

    def _replace(self) -> str:
        """End the worker and start another; what the old one died of."""
        self._process.kill()
        self._process.join()
        cause = cause_of_death(self._process.exitcode)
        self._connection.close()
        if not self._closed:
            self._start()
        return cause

    def stream(self, command: Command, stopped: Stopped) -> Iterator[Event]:
        with one_at_a_time(self._lock, stopped) as acquired:
            yield from with_ends(command, self._events(command, stopped) if acquired else None)

    def _events(self, command: Command, stopped: Stopped) -> Generator[Event]:
        """The events of a command; ends early if it is stopped. Raises DerbyError if the worker
        dies.
        """
        if not self._process.is_alive():
            self._replace()
        while not self._ready:  # a stop costs nobody the models that are being loaded
            if stopped():
                return
            if event := self._receive():
                yield event
        self._send(command)
        self._running, rest = True, list[Event]()
        try:
            while self._running and not stopped():
                if event := self._receive():
                    yield event
        finally:  # also where nobody listens any more
            if self._running:
                rest = self._settle()
        yield from rest

    def _settle(self) -> list[Event]:
        """Stop the command: the events up to its end. A worker that takes too long is replaced."""
        events, latest = list[Event](), time.monotonic() + STOP_GRACE
        self._send(STOP)
        with contextlib.suppress(DerbyError):
            while self._running and time.monotonic() < latest:
                if event := self._receive():
                    events.append(event)
        if self._running:
            self._replace()
        return events

    def _send(self, message: Command | str) -> None:
        with contextlib.suppress(OSError):  # it is dead, as `_receive` finds
            self._connection.send(message)

    def _receive(self) -> Event | None:
        """The worker's next event, if one comes soon. Raises DerbyError if it died: another one is
        started.
        """
        try:
            message = None
            if self._connection.poll(POLL):
                message = json.loads(self._connection.recv_bytes())
            self._ready |= message == READY
            self._running &= message != ENDED
            return None if message in (None, READY, ENDED) else from_json(message)
        except (EOFError, OSError, ValueError) as error:
            how, remedy = "fails to start", "see the app's log, or try again later"
            if self._ready:
                how, remedy = "died", "a new one is starting, so run the race again"
            sentence = f"The worker process {how} ({self._replace()}); {remedy}."
            log.warning(sentence)
            if self._closed:
                sentence = "The app is ending: start it again to run races."
            raise DerbyError(sentence, cause="worker") from error

    def close(self) -> None:
        self._closed = True
        self._process.kill()
        self._process.join()


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
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request
    give_titles(titles)
    end_process_after(GRAMMAR_DEADLINE)
    models = LoadedModels(idle_warm_up=True, limits=limits)

    def prepare(event: Event) -> None:
        if isinstance(event, Preparing):
            log.info(event.text)
            say(connection, to_json(event))

    for spec in warm:  # a short race loads what the first one usually asks for
        race = Race(Request("Hello", 2), tuple(map(parse_column, DEFAULT_COLUMNS)), spec)
        run_to_end(race, models, prepare, lambda: False)
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


def say(connection: Connection, message: Any) -> None:
    """Send the app an event as JSON, or READY or ENDED."""
    connection.send_bytes(json.dumps(message).encode())


def _carry_out(command: Command, models: LoadedModels, connection: Connection) -> None:
    stop = False

    def stopped() -> bool:
        nonlocal stop
        while not stop and connection.poll():
            stop = connection.recv() == STOP
        return stop

    run_to_end(command, models, lambda event: say(connection, to_json(event)), stopped)
