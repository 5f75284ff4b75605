"""Runs what is to be compared in turns, and sums figures up: no side gains from its place or from a
cold machine.

A shared machine's speed drifts: figures compare only with those of the same round, and over many
rounds every side must have been first, second and last equally often.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TypeVar

from backend.bench.prompts import Prompt
from backend.bench.runner import raced, run_solo, whole
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.figures import figure
from backend.results.intervals import median_ratio
from backend.results.metrics import Score
from backend.strategies.column import Column
from backend.types import ModelSpec, Request

Subject = TypeVar("Subject")
Result = TypeVar("Result")


def run_together(race: Race, models: LoadedModels) -> list[Score]:
    """Run all columns interleaved. Raises DerbyError if one fails."""
    return whole(raced(race, models)).scores


def solo_runs(columns: int, models: LoadedModels) -> list[Callable[[Race], Score]]:
    """What runs the first column of a race alone, the second one, and so on."""
    return [partial(run_solo, index=index, models=models) for index in range(columns)]


def race_on(prompt: Prompt, columns: Sequence[Column], request: Request, target: ModelSpec) -> Race:
    """The request on another prompt, in all columns."""
    return Race(replace(request, prompt=prompt.text), tuple(columns), target)


def one_round(
    sides: Sequence[Callable[[Subject], Result]], subject: Subject, number: int
) -> list[Result]:
    """Every side's result for one subject, in the order of `sides`; side `number` runs first."""
    order = [(number + i) % len(sides) for i in range(len(sides))]
    results = {index: sides[index](subject) for index in order}
    return [results[index] for index in range(len(sides))]


def rounds(
    sides: Sequence[Callable[[Subject], Result]],
    subjects: Sequence[Subject],
    begin: Callable[[int], None],
    *,
    warm_up: int,
) -> list[list[Result]]:
    """The sides' results by subject; who runs first rotates from subject to subject.

    The first `warm_up` sides run once more on the first subject at the start, which does not count.
    `begin` is given the number of each round before it runs.
    """
    for side in sides[:warm_up]:
        side(subjects[0])
    results: list[list[Result]] = []
    for number, subject in enumerate(subjects):
        begin(number)
        results.append(one_round(sides, subject, number))
    return results


@dataclass(frozen=True, slots=True)
class Ratios:
    """Ratios of independent runs: their median, its 95 % interval (None: of too few runs), and the
    lowest and highest of them.
    """

    median: float
    interval: tuple[float, float] | None
    spread: tuple[float, float]


def ratios_of(values: Sequence[float], of: Sequence[Hashable] = ()) -> Ratios:
    """What is told of ratios; zeros if there are none. `of` names the prompt of each, () if no two
    are of the same one.
    """
    found = median_ratio(values, of)
    return Ratios(found.value, found.interval, (min(values, default=0.0), max(values, default=0.0)))


def median_figure(name: str, pairs: Sequence[tuple[Score, Score]]) -> float:
    """The median of a figure over (baseline, column) pairs that know it; 0 where none does."""
    values = [figure(name).value(score, base) for base, score in pairs]
    known = [value for value in values if value is not None]
    return median(known) if known else 0.0
