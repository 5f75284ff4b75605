"""Where races run: a host turns a command into a stream of events, and the page never cares how."""

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Protocol

from backend.events import Event, Failed, Finished, failures
from backend.racing.models import LoadedModels

#: Seconds between two looks at whether a race was stopped.
POLL = 0.05

Emit = Callable[[Event], None]
Stopped = Callable[[], bool]


class Command(Protocol):
    """Frozen, and plain enough to be sent to another process. `width`: how many columns end."""

    @property
    def width(self) -> int: ...

    def run(self, models: LoadedModels, emit: Emit, stopped: Stopped) -> None:
        """Emit every event. Raises DerbyError for what the user can mend."""
        ...


@dataclass(frozen=True, slots=True)
class ForgetVisitor:
    """Close the sessions of a visitor who has gone."""

    visitor: str
    width: int = 0

    def run(self, models: LoadedModels, emit: Emit, stopped: Stopped) -> None:
        models.sessions.forget(self.visitor)


class Host(Protocol):
    def stream(self, command: Command, stopped: Stopped) -> Iterator[Event]:
        """Carry out a command and yield its events; within a second of `stopped()` it ends.

        One at a time: a second one waits. Every column ends in Finished or Failed.
        """
        ...

    def close(self) -> None: ...


@contextmanager
def one_at_a_time(lock: threading.Lock, stopped: Stopped) -> Iterator[bool]:
    """Hold the lock once it is free; False, without it, if `stopped()` comes first."""
    while not (acquired := lock.acquire(timeout=POLL)):
        if stopped():
            break
    try:
        yield acquired
    finally:
        if acquired:
            lock.release()


def run_to_end(command: Command, models: LoadedModels, emit: Emit, stopped: Stopped) -> None:
    """Run a command without ever raising: an error fails whichever columns have not ended yet."""
    running = dict.fromkeys(range(command.width))

    def note(event: Event) -> None:
        if isinstance(event, Finished | Failed):
            running.pop(event.column, None)
        emit(event)

    try:
        command.run(models, note, stopped)
    except Exception as error:
        for event in failures(running, error):
            emit(event)


def with_ends(command: Command, events: Generator[Event] | None) -> Iterator[Event]:
    """The events of a command that runs elsewhere, and an end for each column that has none:
    stopped, or failed with what the events raised. None: it was stopped before it began.
    """
    running = dict.fromkeys(range(command.width))
    try:
        if events is not None:
            with closing(events):
                for event in events:
                    if isinstance(event, Finished | Failed):
                        running.pop(event.column, None)
                    yield event
    except Exception as error:
        yield from failures(running, error)
    else:
        yield from (Finished(column, "stopped", []) for column in running)
