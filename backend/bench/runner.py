"""Runs the jobs of a plan that are left, one after another, each row as soon as it is there."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from time import monotonic

from backend.bench.plan import Plan
from backend.bench.rows import Row, left_of, row_of
from backend.engines.base import Engine
from backend.errors import DerbyError
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.metrics import Score
from backend.results.scoreboard import Scoreboard
from backend.types import ModelSpec


def run(
    plan: Plan, done: Sequence[Row], race: Callable[[Race], Scoreboard], say: Callable[[str], None]
) -> Iterator[Row]:
    """The rows that `done` lacks; `race` runs one race. The first one runs once more at the start
    and is not counted, as a cold machine is slower.
    """
    left = left_of(plan, done)
    for job in left[:1]:
        say("warming up")
        race(job.race)
    for job in left:
        say(f"run {job.number + 1} of {len(plan.jobs)} ({job.category})")
        begun = monotonic()
        board = race(job.race)
        yield row_of(plan, job, board, monotonic() - begun)


def raced(race: Race, models: LoadedModels) -> Scoreboard:
    """The board of a race that was run in this process, on this thread."""
    board = Scoreboard(race.columns)
    race.run(models, board.add, lambda: False)
    return board


def racing(models: LoadedModels, say: Callable[[str], None]) -> Callable[[Race], Scoreboard]:
    """What runs races as `raced` does, their prompts as they are where the target has no chat
    template; `say` is told that once a model.
    """

    @cache
    def taking_chats(target: ModelSpec) -> bool:
        try:
            return chats(models.get(target, say), say)
        except Exception:  # its columns tell
            return True

    def run_one(race: Race) -> Scoreboard:
        if race.request.chat and not taking_chats(race.target):
            race = replace(race, request=replace(race.request, chat=False))
        return raced(race, models)

    return run_one


def chats(engine: Engine, say: Callable[[str], None]) -> bool:
    """Whether the model has a chat template that takes a question; `say` is told if not."""
    try:
        engine.tokenizer.encode("a", chat=True)
    except DerbyError:
        say("The model has no chat template, so prompts are sent as they are.")
        return False
    return True


def whole(board: Scoreboard) -> Scoreboard:
    """The same board. Raises DerbyError if a column failed."""
    for column, score in zip(board.columns, board.scores, strict=True):
        if score.state != "done":
            raise DerbyError(f"{column.label} did not finish: {score.message}")
    return board


def run_solo(race: Race, index: int, models: LoadedModels) -> Score:
    """Run one of the race's columns alone. Raises DerbyError if it fails."""
    alone = Race(race.request, (race.columns[index],), race.target)
    return whole(raced(alone, models)).scores[0]
