"""python -m experiments opening: the race that a page just opened plays, recorded anew."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from backend.bench.quiet import wait_for_quiet
from backend.cli.console import say
from backend.cli.options import Wait
from backend.events import Conditions, Event, Preparing
from backend.racing.commands import Measure
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.records.file import require_folder, save
from backend.records.record import RaceRecord, board, recorded
from backend.results.sentences import headline, taken_by_others
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request
from backend.web.assets import ASSETS
from backend.web.examples import OPENING, examples


def opening(
    file: Annotated[Path, typer.Option(help="Where the record goes.")] = ASSETS / OPENING,
    tries: Annotated[int, typer.Option(min=1, help="Races; the middle quiet one is kept.")] = 5,
    wait: Wait = 30,
) -> None:
    """Race the first example on the built-in model; keep the middle one of the quiet races. What
    load costs is measured before, so that the record shows it.
    """
    require_folder(file)
    models = LoadedModels()
    record(models)  # the first race loads and learns
    wait_for_quiet(wait, say)
    Measure((parse_column("kv"),), ModelSpec(), load=True).run(models, say_news, lambda: False)
    races: list[RaceRecord] = []
    for number in range(tries):
        wait_for_quiet(wait, say)
        races.append(record(models))
        made = board(races[-1])
        told = taken_by_others(made.conditions) if made.conditions else "nothing is known of others"
        say(f"race {number + 1} of {tries}: {headline(made)} Meanwhile {told}.")
    save(middle(races), file)


def say_news(event: Event) -> None:
    """Say what is waited for."""
    if isinstance(event, Preparing):
        say(event.text)


def record(models: LoadedModels) -> RaceRecord:
    """The first example's race, with every event."""
    first = examples()[0]
    columns = tuple(map(parse_column, first.columns))
    race = Race(Request(first.prompt, first.tokens), columns, ModelSpec())
    events: list[Event] = []
    race.run(models, events.append, lambda: False)
    return recorded(race.request, columns, race.target, events)


def middle(races: Sequence[RaceRecord]) -> RaceRecord:
    """Of the races that others disturbed least, to a hundredth of the machine, the one whose best
    speed-up is the median.
    """
    least = min(map(disturbed, races))
    quiet = [race for race in races if disturbed(race) <= least + 0.01]
    return sorted(quiet, key=best)[len(quiet) // 2]


def best(made: RaceRecord) -> float:
    """The highest speed-up of the race."""
    shown = board(made)
    return max(map(shown.speedup, range(len(shown.scores))))


def disturbed(made: RaceRecord) -> float:
    """The share of the machine that went to others while the race ran."""
    found = next((e for e in made.events if isinstance(e, Conditions)), None)
    return found.others + found.stolen if found else 1.0
