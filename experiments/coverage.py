"""Are intervals as sure as they say? Races of KV reuse against itself, whose truth is 1."""

from dataclasses import dataclass, replace
from statistics import median

from backend.bench.runner import raced, whole
from backend.racing.race import Race
from backend.results.intervals import Ratio
from backend.results.result import result_of
from backend.strategies.column import default_column
from backend.strategies.registry import BASELINE
from experiments.experiment import Experiment, Setup


@dataclass(frozen=True, slots=True)
class CoverageResult:
    """Of so many races, those long enough for an interval, and the share of these whose interval
    held 1: 0.95 if it is what it says. width: the upper end over the lower, the median; furthest:
    the ratio that was furthest from 1.
    """

    column: str
    races: int
    intervals: int
    held: float
    width: float
    furthest: float


def coverage(setup: Setup) -> list[CoverageResult]:
    """`setup.rounds` races, on the prompts in turn."""
    column = default_column(BASELINE)
    found: list[Ratio] = []
    for number in range(setup.rounds):
        setup.say(f"race {number + 1} of {setup.rounds}")
        prompt = setup.prompts[number % len(setup.prompts)].text
        race = Race(replace(setup.request, prompt=prompt), (column, column), setup.target)
        found.append(result_of(whole(raced(race, setup.models))).rows[1].speedup)
    return [summed_up(column.label, found)]


def summed_up(column: str, found: list[Ratio]) -> CoverageResult:
    """What is told of such races."""
    known = [ratio for ratio in found if ratio.known]
    held = sum(ratio.low <= 1 <= ratio.high for ratio in known)
    return CoverageResult(
        column,
        len(found),
        len(known),
        held / len(known) if known else 0.0,
        median(ratio.high / ratio.low for ratio in known) if known else 0.0,
        max(
            (ratio.value for ratio in found if ratio.value),
            key=lambda value: max(value, 1 / value),
            default=0.0,
        ),
    )


COVERAGE = Experiment(
    "coverage", "How often the interval of a column's race against itself holds 1.", coverage
)
