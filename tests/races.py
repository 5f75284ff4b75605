"""Races in this process on the fake engine, as tests of several rooms run them."""

from collections.abc import Callable, Iterable, Sequence

from hosting import never

from backend.bench.runner import raced, whole
from backend.events import Event
from backend.racing.hosts import InlineHost
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Score, Scoreboard
from backend.strategies.column import Column
from backend.types import ModelSpec

FAKE = ModelSpec("fake", "fake")


def events_of(
    race: Race, models: LoadedModels | None = None, stopped: Callable[[], bool] = never
) -> list[Event]:
    """All that happens in a race."""
    events: list[Event] = []
    InlineHost(models or LoadedModels()).run(race, events.append, stopped)
    return events


def board_after(columns: Sequence[Column], events: Iterable[Event]) -> Scoreboard:
    """What the columns have come to after these events."""
    board = Scoreboard(columns)
    for event in events:
        board.add(event)
    return board


def run_solo(race: Race, index: int, models: LoadedModels) -> Score:
    """Run one of the race's columns alone. Raises DerbyError if it fails."""
    alone = Race(race.request, (race.columns[index],), race.target)
    return whole(raced(alone, models)).scores[0]
