"""Where races run. The page never cares: a host turns a command into a stream of events."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from backend.events import Event
from backend.racing.commands import Command

#: Seconds between two looks at whether a race was stopped.
POLL = 0.05


class Host(Protocol):
    def stream(self, command: Command, stopped: Callable[[], bool]) -> Iterator[Event]:
        """Carry out a command and yield its events; within a second of `stopped()` it ends.

        One at a time: a second one waits. Every column ends in Finished or Failed.
        """
        ...

    @property
    def preparing(self) -> str:
        """What it still does before it takes races; "": it takes them."""
        ...

    def close(self) -> None: ...


@contextmanager
def held(lock: threading.Lock, stopped: Callable[[], bool]) -> Iterator[bool]:
    """Hold the lock once it is free; False, without it, if `stopped()` comes first."""
    while not (mine := lock.acquire(timeout=POLL)):
        if stopped():
            break
    try:
        yield mine
    finally:
        if mine:
            lock.release()
