"""What rows come to: every column's medians over the prompts.

Columns are compared within one job, because absolute times drift on shared machines and ratios do
not.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from statistics import median
from typing import Annotated

from backend.bench.plan import Plan
from backend.bench.rows import Figures, Positions, Row
from backend.results.figures import figure
from backend.results.intervals import median_ratio

#: Stands for all categories, and for all machines.
ALL = "all"


@dataclass(frozen=True, slots=True)
class Measured:
    """One column's figures in a turn of one prompt, the one of that number."""

    column: str
    category: str
    prompt: int
    figures: Figures
    model: str = ""
    machine: str = ""


@dataclass(frozen=True, slots=True)
class ColumnResult:
    """One column's medians over all prompts. Times in milliseconds.

    clock: whose time it is, as a score has it. speedup: median of the prompts' speed-ups over KV
    reuse, with its 95 % interval, which only one clock has, and the lowest and highest in `spread`.
    by_position: the accepted share of guesses 1, 2, 3, ... of a round, over all
    prompts. overhead: a step's time outside draft, mask and forward. equal: prompts whose
    text was that of KV reuse, each time, of those compared. None: unknown, as much is of servers.
    """

    column: str
    clock: str
    category: str
    prompts: int
    ttft: Annotated[float | None, figure("ttft")]
    tpot: Annotated[float | None, figure("tpot")]
    speedup: Annotated[float | None, figure("speedup")]
    interval: tuple[float, float] | None
    spread: tuple[float, float] | None
    tokens_per_forward: Annotated[float | None, figure("tokens_per_forward")]
    acceptance: Annotated[float | None, figure("accepted")]
    by_position: list[float]
    overhead: float | None
    mask: Annotated[float | None, figure("mask_wait")]
    equal: int
    model: str = ""
    machine: str = ALL


def winner(speedups: Iterable[tuple[str, float | None, tuple[float, float] | None]]) -> str:
    """Of names, speed-ups over KV reuse and their intervals, the name of the highest speed-up whose
    interval lies above 1; "" if there is none: what may be chance is not recommended.
    """
    shown = [
        (speedup, name)
        for name, speedup, interval in speedups
        if speedup is not None and interval is not None and interval[0] > 1
    ]
    return max(shown, default=(0.0, ""))[1]


def measured(plan: Plan, rows: Iterable[Row]) -> list[Measured]:
    """The figures of all rows, named by the plan, in its order."""
    return [
        Measured(column.label, job.category, job.prompt, found, str(job.race.target), row.machine)
        for row in sorted(rows, key=lambda row: row.job)
        for job in [plan.jobs[row.job]]
        for turn in row.turns
        for column, found in zip(plan.columns, turn, strict=True)
        if isinstance(found, Figures)
    ]


def failures(plan: Plan, rows: Iterable[Row]) -> list[str]:
    """A sentence on each column that failed, and at which prompt."""
    return [
        f"{column.label}, prompt {plan.jobs[row.job].place + 1}: {found}"
        for row in sorted(rows, key=lambda row: row.job)
        for turn in row.turns
        for column, found in zip(plan.columns, turn, strict=True)
        if isinstance(found, str) and found
    ]


def results(found: Iterable[Measured]) -> list[ColumnResult]:
    """Every column's results by model: on all prompts, by category where there is more than one,
    and by machine where there is more than one.
    """
    models: dict[str, dict[tuple[str, str], dict[str, list[Measured]]]] = {}
    for each in found:
        parts = models.setdefault(each.model, {})
        for part in dict.fromkeys([(ALL, ALL), (each.category, ALL), (ALL, each.machine)]):
            parts.setdefault(part, {}).setdefault(each.column, []).append(each)
    lines: list[ColumnResult] = []
    for parts in models.values():
        categories = [part for part in parts if part[0] != ALL]
        machines = sorted(part for part in parts if part[1] != ALL)
        several = [some for some in (categories, machines) if len(some) > 1]
        for category, machine in [(ALL, ALL), *chain.from_iterable(several)]:
            columns = parts[category, machine].values()
            lines += [_result(of_column, category, machine) for of_column in columns]
    return lines


def _result(found: Sequence[Measured], category: str, machine: str) -> ColumnResult:
    """One column's medians over all turns, whose intervals count a prompt once. A prompt may come
    more than once; those answered by a single step say nothing of speed.
    """
    figures = [each.figures for each in found]
    fast = [each for each in found if each.figures.speedup]
    speedups = [each.figures.speedup for each in fast]
    ratio = median_ratio(speedups, [each.prompt for each in fast])
    prompts = {each.prompt for each in found}
    clocks, drafted = {each.clock for each in figures}, sum(each.drafted for each in figures)
    return ColumnResult(
        column=found[0].column,
        clock=" and ".join(sorted(clocks)),
        category=category,
        prompts=len(prompts),
        ttft=_median(each.ttft for each in figures),
        tpot=_median(each.tpot for each in figures),
        speedup=ratio.value or None,
        interval=ratio.interval if clocks == {"own"} else None,
        spread=(min(speedups), max(speedups)) if fast else None,
        tokens_per_forward=_median(each.tokens_per_forward for each in figures),
        acceptance=sum(each.accepted for each in figures) / drafted if drafted else None,
        by_position=_by_position(each.positions for each in figures),
        overhead=_median(each.overhead for each in figures),
        mask=_median(each.mask for each in figures),
        equal=len(prompts - {each.prompt for each in found if not each.figures.equal}),
        model=found[0].model,
        machine=machine,
    )


def _by_position(found: Iterable[Positions]) -> list[float]:
    """The accepted share of all guesses offered at each position."""
    columns = zip_longest(*found, fillvalue=(0, 0))
    summed = [tuple(map(sum, zip(*each, strict=True))) for each in columns]
    return [accepted / offered for offered, accepted in summed if offered]


def _median(values: Iterable[float | None]) -> float | None:
    """The median of those that are known."""
    known = [value for value in values if value is not None]
    return median(known) if known else None
