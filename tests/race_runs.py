"""Races as tests of several rooms run them: here on the fake engine, or through a host."""

import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import psutil

from backend.bench.runner import raced
from backend.events import Event, Failed, Finished
from backend.racing.hosts import Host
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Score, Scoreboard
from backend.strategies.column import Column
from backend.types import ModelSpec

FAKE = ModelSpec("fake", "fake")

PATIENCE = 30.0  # seconds, far beyond anything that works


def never() -> bool:
    return False


def events_of(
    race: Race, models: LoadedModels | None = None, stopped: Callable[[], bool] = never
) -> list[Event]:
    """All that happens in a race."""
    events: list[Event] = []
    Host(models or LoadedModels()).run(race, events.append, stopped)
    return events


def streamed(
    host: Host, race: Any, stopped: Callable[[], bool] = never
) -> Generator[Event, None, None]:
    """The events of a race, or of a fake one; closing it stops the race and waits for its end."""
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
        thread.join(PATIENCE)


def ends(events: Iterable[Event]) -> dict[int, Event]:
    """The last event of every column. Raises AssertionError if a column ended twice."""
    last: dict[int, Event] = {}
    for event in events:
        if isinstance(event, Finished | Failed):
            assert event.column not in last
            last[event.column] = event
    return last


def board_after(columns: Sequence[Column], events: Iterable[Event]) -> Scoreboard:
    """What the columns have come to after these events."""
    board = Scoreboard(columns)
    for event in events:
        board.add(event)
    return board


def run_solo(race: Race, index: int, models: LoadedModels) -> Score:
    """Run one of the race's columns alone. Raises AssertionError if it fails."""
    (score,) = raced(Race(race.request, (race.columns[index],), race.target), models).scores
    assert score.state == "done", score.message
    return score


def until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Look until it is so. Raises AssertionError if it never comes to be."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        threading.Event().wait(0.005)


def alive(pid: int) -> bool:
    """Whether a process does, or could do, anything."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False
