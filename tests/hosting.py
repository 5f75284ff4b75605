"""What the tests of hosts share: patience, and how columns ended."""

import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from backend.events import Event, Failed, Finished
from backend.racing.hosts import Host

PATIENCE = 30.0  # seconds, far beyond anything that works


def never() -> bool:
    return False


def streamed(
    host: Host, race: Any, stopped: Callable[[], bool] = never
) -> Generator[Event, None, None]:
    """The events of a race, or of a deed; closing it stops the race and waits for its end."""
    queue: SimpleQueue[Event | None] = SimpleQueue()
    closed = threading.Event()

    def run() -> None:
        host.run(race, queue.put, lambda: closed.is_set() or stopped())
        queue.put(None)

    thread = threading.Thread(target=run, name="race", daemon=True)
    thread.start()
    try:
        yield from iter(queue.get, None)
    finally:
        closed.set()
        thread.join()


def until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Look until it is so. Raises AssertionError if it never comes to be."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        threading.Event().wait(0.005)


def ends(events: list[Event]) -> dict[int, Event]:
    """Each column's last event. Raises AssertionError if a column ended twice."""
    found: dict[int, Event] = {}
    for event in events:
        if isinstance(event, Finished | Failed):
            assert event.column not in found
            found[event.column] = event
    return found


def alive(pid: int) -> bool:
    """Whether a process does, or could do, anything."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


@contextmanager
def no_hanging(seconds: float = 3 * PATIENCE) -> Iterator[None]:
    """A host that breaks its promises may make its reader wait for ever: fail the test instead."""

    def fail(*_: object) -> None:
        pytest.fail("the host keeps its reader waiting")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(int(seconds))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
