"""Do own clocks keep columns apart? Interleaved figures over those of columns that run alone."""

from dataclasses import dataclass
from statistics import median

from backend.bench.plan import with_baseline
from backend.bench.runner import run_solo
from backend.racing.race import Race
from backend.results.metrics import Score
from experiments.experiment import Experiment, Setup
from experiments.runs import race_on, ratios_of, rounds, run_together


@dataclass(frozen=True, slots=True)
class ClockResult:
    """A column's own-clock times interleaved over solo: 1 means an undisturbed clock.

    tpot, ttft: medians of per-prompt ratios; interval: the 95 % interval of TPOT's, which is taken
    over the same tokens; spread: its lowest and highest.
    """

    column: str
    tpot: float
    ttft: float
    interval: tuple[float, float] | None
    spread: tuple[float, float]


def interleaved(setup: Setup) -> list[ClockResult]:
    """All columns together and each alone on every prompt, alternating which comes first."""
    columns = with_baseline(setup.columns)
    races = [race_on(prompt, columns, setup.request, setup.target) for prompt in setup.prompts]

    def together(race: Race) -> list[Score]:
        return run_together(race, setup.models)

    def alone(race: Race) -> list[Score]:
        return [run_solo(race, index, setup.models) for index in range(len(columns))]

    runs = rounds((together, alone), races, setup.say_prompt, warm_up=1)
    results: list[ClockResult] = []
    for index, column in enumerate(columns):
        measured = [i for i, (_, own) in enumerate(runs) if own[index].tpot]
        pairs = [(runs[i][0][index], runs[i][1][index]) for i in measured]
        if pairs:
            steps = ratios_of(
                [own.speedup_over(mixed) for mixed, own in pairs],
                [setup.prompts[i].text for i in measured],
            )
            starts = median(mixed.ttft / own.ttft for mixed, own in pairs)
            results.append(
                ClockResult(column.label, steps.median, starts, steps.interval, steps.spread)
            )
    return results


INTERLEAVED = Experiment(
    "interleaved", "own-clock times of columns that run together over those alone", interleaved
)
