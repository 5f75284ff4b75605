"""What rows come to: every column's medians over the prompts, and how they are written.

Columns are compared within one job, because absolute times drift on shared machines and ratios do
not.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from backend.bench.plan import Plan
from backend.bench.rows import Figures, PromptRow
from backend.results.figures import DASH, MEAN, SHARE, counted, factor, listed, milliseconds
from backend.results.intervals import median_ratio
from backend.results.result import NOISY
from backend.results.sentences import noise, none_faster

#: Stands for all categories.
ALL = "all"


@dataclass(frozen=True, slots=True)
class Measured:
    """One column's figures in a turn of one prompt, the one of that number; None: it failed."""

    column: str
    category: str
    prompt: int
    figures: Figures | None

    @property
    def speedup(self) -> float:
        """0: there is none."""
        return self.figures.speedup if self.figures else 0.0


@dataclass(frozen=True, slots=True)
class ColumnResult:
    """One column's medians over the prompts of a category. Times in milliseconds; None: unknown.

    speedup: median of the prompts' speed-ups over the baseline, with its 95 % interval, which only
    columns on its clock have. left_out: prompts without one, as the column failed or an answer was
    too short. equal: prompts whose text was the baseline's, each time. faster: the interval lies
    above 1.
    """

    column: str
    category: str
    prompts: int
    left_out: int
    ttft: float | None
    tpot: float | None
    speedup: float | None
    interval: tuple[float, float] | None
    tokens_per_pass: float | None
    acceptance: float | None
    equal: int
    faster: bool


#: What stands above `cells`.
HEADINGS = (
    "column",
    "speed-up",
    "95% interval",
    "left out",
    "tokens/pass",
    "accepted",
    "TPOT, ms",
    "TTFT, ms",
    "same text",
)


def cells(result: ColumnResult) -> list[str]:
    """The result as it is written below HEADINGS."""
    speedup, *others = (
        DASH if value is None else write(value)
        for write, value in (
            (factor, result.speedup),
            (MEAN, result.tokens_per_pass),
            (SHARE, result.acceptance),
            (milliseconds, result.tpot),
            (milliseconds, result.ttft),
        )
    )
    equal = f"{result.equal} of {result.prompts}"
    left_out = str(result.left_out or DASH)
    return [result.column, speedup, interval_of(result) or DASH, left_out, *others, equal]


def interval_of(result: ColumnResult) -> str:
    """The speed-up's interval; "": there is none, or it is the baseline's over itself."""
    low, high = result.interval or (1.0, 1.0)
    return f"{low:.2f}{DASH}{high:.2f}" if low < high else ""


def by_category(results: Sequence[ColumnResult]) -> str:
    """The results in Markdown, as Spec-Bench and SPEED-Bench print theirs: a line a column,
    a cell a category. A cell has the speed-up over the baseline with its 95 % interval, tokens per
    pass, and the accepted share of the guesses.
    """
    prompts = {result.category: result.prompts for result in results}
    lines: dict[str, dict[str, str]] = {}
    for result in results:
        _, speedup, _, _, tokens, accepted, *_ = cells(result)
        interval = f" ({interval_of(result)})" if interval_of(result) else ""
        known = [f"{speedup}{interval}", *(cell for cell in (tokens, accepted) if cell != DASH)]
        lines.setdefault(result.column, {})[result.category] = ", ".join(known)
    heads = ["column", *(f"{name} ({count})" for name, count in prompts.items())]
    rows = [[column, *(line.get(name, DASH) for name in prompts)] for column, line in lines.items()]
    table = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in table)


def conclusion(plan: Plan, results: Sequence[ColumnResult], rows: Sequence[PromptRow]) -> str:
    """What results on all prompts come to, in a sentence or two: which columns are shown to be
    faster, the fastest first; none is where others used too much of the machine.
    """
    others = mean(row.others for row in rows) if rows else 0.0
    if others > NOISY:
        return noise(others)
    faster = [
        f"{result.column} {factor(result.speedup)} ({interval_of(result)})"
        for result in sorted(results, key=lambda result: -(result.speedup or 0.0))
        if result.speedup and result.faster and result.equal == result.prompts
    ]
    baseline = plan.names[plan.baseline]
    sentence = none_faster(baseline)
    if faster:
        sentence = f"Measurably faster than {baseline}, with the same text: {listed(faster)}."
    elif not any(result.interval for result in results):
        sentence = "Four prompts or more are needed to name a faster column."
    return " ".join(filter(None, (sentence, noise(others))))


def measured(plan: Plan, rows: Iterable[PromptRow]) -> list[Measured]:
    """The figures of all rows, named by the plan, in its order."""
    return [
        Measured(name, job.category, job.prompt, None if isinstance(one, str) else one)
        for row in sorted(rows, key=lambda row: row.job)
        for job in [plan.jobs[row.job]]
        for turn in row.turns
        for name, one in zip(plan.names, turn, strict=True)
    ]


def failures(plan: Plan, rows: Iterable[PromptRow]) -> list[str]:
    """A sentence on each column that failed, at how many prompts or at which one, and why."""
    jobs: dict[tuple[str, str], list[int]] = {}
    for row in sorted(rows, key=lambda row: row.job):
        for turn in row.turns:
            for name, reason in zip(plan.names, turn, strict=True):
                if isinstance(reason, str) and reason:
                    jobs.setdefault((name, reason), []).append(row.job + 1)
    return [
        f"{name}, {counted(len(at), 'prompt') if at[1:] else f'prompt {at[0]}'}: {reason}"
        for (name, reason), at in jobs.items()
    ]


def results(measurements: Iterable[Measured]) -> list[ColumnResult]:
    """Every column's results on all prompts, and by category where there is more than one."""
    categories: dict[str, dict[str, list[Measured]]] = {ALL: {}}
    for one in measurements:
        for category in dict.fromkeys((ALL, one.category)):
            categories.setdefault(category, {}).setdefault(one.column, []).append(one)
    return [
        _result(of_column, category)
        for category, columns in categories.items()
        if category == ALL or len(categories) > 2
        for of_column in columns.values()
    ]


def _result(measurements: Sequence[Measured], category: str) -> ColumnResult:
    """One column's medians over all turns, whose intervals count a prompt once. A prompt may come
    more than once; those answered by a single step say nothing of speed.
    """
    figures = [one.figures for one in measurements if one.figures]
    fast = [one for one in measurements if one.speedup]
    ratio = median_ratio([one.speedup for one in fast], [one.prompt for one in fast])
    prompts = {one.prompt for one in measurements}
    unequal = {one.prompt for one in measurements if not (one.figures and one.figures.equal)}
    drafted = sum(one.drafted for one in figures)
    one_clock = all(one.one_clock for one in figures)
    return ColumnResult(
        column=measurements[0].column,
        category=category,
        prompts=len(prompts),
        left_out=len(prompts - {one.prompt for one in fast}),
        ttft=_median(one.ttft for one in figures),
        tpot=_median(one.tpot for one in figures),
        speedup=ratio.value or None,
        interval=ratio.interval if one_clock else None,
        tokens_per_pass=_median(one.tokens_per_pass for one in figures),
        acceptance=sum(one.accepted for one in figures) / drafted if drafted else None,
        equal=len(prompts - unequal),
        faster=one_clock and ratio.above,
    )


def _median(values: Iterable[float | None]) -> float | None:
    """The median of those that are known."""
    known = [value for value in values if value is not None]
    return median(known) if known else None
