"""The benchmark of a line-up: every column runs alone on every prompt, as with the command line's
`bench`.

Each prompt is a separate race in the queue, so other visitors' races can run in between. The server
keeps nothing. A visitor who comes back, even to another process, continues from the rows that the
browser kept.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import ceil, floor
from textwrap import shorten
from typing import Any, Literal

import numpy as np

from backend.bench.plan import Plan
from backend.bench.prompts import PROMPTS, Prompt, prompts_in
from backend.bench.rows import Figures, OtherPlanError, Row, left_of, row_of, rows_in, with_row
from backend.bench.runner import RAW, warmed
from backend.bench.summary import ALL, ColumnResult, Measured, failures, measured, results, winner
from backend.bench.tables import cells, headings, unshown
from backend.errors import DerbyError, explain
from backend.export.tables import csv_of
from backend.results.figures import DASH, counted, factor
from backend.web.form import Values, read_race, read_whole
from backend.web.offer import Offer
from backend.web.view import View
from backend.web.visitors import Visitors

#: Characters of a prompt set.
MOST_TEXT = 200_000

#: Characters of what a browser kept.
MOST_KEPT = 1 << 22

#: Fields of a result that the page's table shows; the rest is in the file.
_SHOWN = (
    "column",
    "clock",
    "speedup",
    "interval",
    "spread",
    "tokens_per_forward",
    "acceptance",
    "equal",
    "tpot",
    "ttft",
    "mask",
)

#: What the table's less usual columns are, below those of them that are shown.
_EXPLAINED = {
    "interval": "Interval: the 95% interval of the median over similar prompts.",
    "spread": "Spread: the lowest and highest prompt.",
    "equal": "Same text: prompts with the text of KV reuse.",
}

Phase = Literal["warming up", "running", "stopped", "ended"]


@dataclass(frozen=True)
class Standing:
    """A benchmark at a moment: the plan, the rows that have been measured, the prompt that runs,
    and how many seconds the last run took; 0: none has ended.
    """

    plan: Plan
    rows: Sequence[Row] = field(default=())
    phase: Phase = "warming up"
    prompt: str = ""
    took: float = 0.0

    @cached_property
    def found(self) -> list[Measured]:
        return measured(self.plan, self.rows)

    @cached_property
    def results(self) -> list[ColumnResult]:
        return results(self.found)

    @property
    def over(self) -> bool:
        return self.phase in ("stopped", "ended")

    @property
    def left(self) -> float:
        """Seconds until the end, as the current run begins; 0 while unknown."""
        return (
            self.took * (len(self.plan.jobs) - len(self.rows)) if self.phase == "running" else 0.0
        )

    @property
    def status(self) -> str:
        """How far it is, in a sentence, and how prompts are sent if the model has no template."""
        return f"{self._come} {RAW}" if any(row.raw for row in self.rows) else self._come

    @property
    def _come(self) -> str:
        total, done = len(self.plan.jobs), len(self.rows)
        # A prompt that is measured twice is one prompt in the table below.
        each = "prompt" if len({job.prompt for job in self.plan.jobs}) == total else "run"
        match self.phase:
            case "ended":
                return f"{total} of {total} {each}s measured, each strategy alone."
            case "stopped" if not done:
                return f"Stopped before the first {each} was finished."
            case "stopped":
                return f"Stopped after {done} of {total} {each}s: Resume continues."
            case "warming up":
                return "Warming up: the first prompt runs once and is not counted."
        asked = shorten(self.prompt, 60, placeholder=" ...")
        return f'{each.capitalize()} {done + 1} of {total}: "{asked}"'


class Benchmarks:
    """The visitors' benchmarks. Nothing that they send is trusted."""

    def __init__(self, visitors: Visitors, offer: Offer) -> None:
        self._visitors = visitors
        self._offer = offer

    async def start(
        self, visitor: str, values: Values, prompts: Any, repeats: Any, before: Any = ""
    ) -> AsyncIterator[View]:
        """Yield the views of a benchmark (see `measure`). If it is refused, the only view holds
        "alert".
        """
        try:
            async for standing in self.measure(visitor, values, prompts, repeats, before):
                yield benchmark_view(standing, self._offer.public)
        except Exception as error:
            yield {"alert": self._offer.public(explain(error))}

    async def measure(
        self, visitor: str, values: Values, prompts: Any, repeats: Any, before: Any = ""
    ) -> AsyncIterator[Standing]:
        """Measure the form's line-up and yield the state after each prompt. `prompts` is text; ""
        stands for the built-in prompts. `before` is the "kept" of an earlier view, to continue
        from; "" starts a new benchmark. The first prompt runs once more at the start and is not
        counted, because a cold machine is slower. Raises DerbyError.
        """

        def made() -> tuple[Plan, list[Row]]:
            plan = self._plan(values, prompts, repeats)
            return plan, _go_on(plan, before) if before != "" else []

        plan, rows = await asyncio.to_thread(made)  # the page does not wait meanwhile
        took = 0.0
        with self._visitors.series(visitor) as stopped:
            for job, counts in warmed(left_of(plan, rows)):
                phase, boards, begun = "running" if counts else "warming up", [], time.monotonic()
                while (counts or not boards) and (race := job.next_race(boards)) is not None:
                    yield Standing(plan, tuple(rows), phase, race.request.prompt, took)
                    board = None if stopped() else await self._visitors.measure(visitor, race)
                    if board is None or any(score.state == "stopped" for score in board.scores):
                        yield Standing(plan, tuple(rows), "stopped")
                        return
                    boards.append(board)
                took = time.monotonic() - begun
                if counts:
                    rows = with_row(rows, row_of(plan, job, boards, self._offer.public))
        yield Standing(plan, tuple(rows), "ended")

    def _plan(self, values: Values, prompts: Any, repeats: Any) -> Plan:
        chosen = _read_prompts(prompts, repeats, self._offer)
        race = read_race({**values, "prompt": chosen[0].text}, self._offer)
        return Plan(chosen, race.columns, race.request, (race.target,))


def _read_prompts(text: Any, repeats: Any, offer: Offer) -> tuple[Prompt, ...]:
    """The prompts, as often as they are to be measured. Raises DerbyError."""
    times, most = read_whole("repeats", repeats), offer.limits.benchmark_races
    if not isinstance(text, str) or len(text) > MOST_TEXT:
        raise DerbyError(f"The prompt set must be text of at most {MOST_TEXT:,} characters.")
    if times < 1:
        raise DerbyError(f"repeats is {times}; it must be 1 or more.")
    chosen = prompts_in(text, "The prompt set") if text.strip() else PROMPTS
    if not most:
        raise DerbyError("This page runs no benchmarks: the command line's `bench` does.")
    turns = sum(1 + len(prompt.later) for prompt in chosen)
    if turns * times > most:
        often = "once" if times == 1 else f"{times:,} times"
        raise DerbyError(
            f"{counted(turns, 'prompt')}, {often} each, are more than the {most:,} runs that "
            "a benchmark may have here: choose fewer."
        )
    return chosen * times


def _go_on(plan: Plan, text: Any) -> list[Row]:
    """The rows that a browser kept of this benchmark. Raises DerbyError for anything else, and if
    nothing is left to be measured.
    """
    nothing = DerbyError("There is no benchmark to continue: start one.")
    if not isinstance(text, str) or len(text) > MOST_KEPT:
        raise nothing
    try:
        rows = rows_in(text, plan)
    except OtherPlanError as error:
        raise DerbyError(
            "The results belong to another line-up, prompt set, machine or version: start a new "
            "benchmark."
        ) from error
    except DerbyError as error:
        raise nothing from error
    if not left_of(plan, rows):
        raise DerbyError("This benchmark has ended: start a new one.")
    return rows


def benchmark_view(standing: Standing, public: Callable[[str], str] = str) -> View:
    """A benchmark as plain JSON for the page, with every word and figure ready to be shown, the
    fastest strategy first. "time" is how many seconds are left, which the page counts down; "left"
    is the status if the benchmark is abandoned now, "kept" the rows from which it can then
    continue.
    """
    plan, rows = standing.plan, standing.rows
    known = [_shown(result, plan) for result in sorted(standing.results, key=_slowness)]
    left_out = unshown(known)
    shown = [name for name in _SHOWN if name not in left_out]
    left = standing if standing.phase == "ended" else Standing(plan, rows, "stopped")
    return {
        "phase": standing.phase,
        "status": standing.status,
        "time": round(standing.left),
        "left": left.status,
        "share": round(len(rows) / len(plan.jobs), 4),
        "verdict": public(_verdict(standing.results)) if standing.over else "",
        "explained": " ".join(text for name, text in _EXPLAINED.items() if name in shown),
        "headings": _headings(shown) if known else [],
        "groups": [
            [
                category,
                [
                    list(map(public, _cells(shown, result)))
                    for result in known
                    if (result.category, result.machine) == (category, ALL)
                ],
            ]
            for category in dict.fromkeys(result.category for result in standing.results)
        ],
        "boxes": _boxes(standing.found, _fastest_first(known, plan), public),
        "failures": failures(plan, rows),
        "kept": "".join(row.line for row in rows),
        "files": _files(standing, public) if standing.over and known else None,
    }


def _slowness(result: ColumnResult) -> float:
    return -(result.speedup or 0.0)


def _fastest_first(known: Iterable[ColumnResult], plan: Plan) -> list[str]:
    """The columns but the baseline, in the order of their results on all prompts."""
    whole = [each.column for each in known if (each.category, each.machine) == (ALL, ALL)]
    return [column for column in whole if column != plan.columns[0].label]


def _shown(result: ColumnResult, plan: Plan) -> ColumnResult:
    """The result without a spread over a single prompt, and without the interval and the spread of
    the baseline's speed-up over itself.
    """
    if result.column == plan.columns[0].label:
        return replace(result, interval=None, spread=None)
    return result if result.prompts > 1 else replace(result, spread=None)


def _verdict(known: Sequence[ColumnResult]) -> str:
    """What the results come to, in a sentence; "" while there are none."""
    whole = {each.column: each for each in known if (each.category, each.machine) == (ALL, ALL)}
    best = winner((each.column, each.speedup, each.interval) for each in whole.values())
    if found := whole.get(best):
        low, high = found.interval or (0.0, 0.0)
        return (
            f"{best} is the fastest: its median speed-up over KV reuse is "
            f"{factor(found.speedup or 0)} (95% interval {low:.2f}{DASH}{high:.2f})."
        )
    if len(whole) < 2:
        return ""
    if not any(each.interval for each in whole.values()):
        return "These are too few prompts to name the fastest strategy: four are needed."
    said = "No strategy was measurably faster than KV reuse."
    _, *others = whole.values()
    known_of = [(each.speedup or 0.0, each.interval, each.column) for each in others]
    speed, interval, column = max((each for each in known_of if each[1]), default=(0.0, None, ""))
    low, high = interval or (0.0, 0.0)
    if high <= 1:
        return said
    interval = f"95% interval {low:.2f}{DASH}{high:.2f}"
    return f"{said} The median of {column} is {factor(speed)} ({interval}). More prompts narrow it."


def _headings(names: Sequence[str]) -> list[str]:
    """What stands above these fields of a result."""
    every = dict(zip(ColumnResult.__dataclass_fields__, headings(ColumnResult), strict=True))
    every |= {"column": "strategy", "equal": "same text"}
    return [every[name] for name in names]


def _cells(names: Sequence[str], result: ColumnResult) -> list[str]:
    """These fields of a result, as they are written."""
    every = dict(zip(ColumnResult.__dataclass_fields__, cells(result), strict=True))
    every["equal"] = f"{result.equal} of {result.prompts}"
    return [every[name] for name in names]


def _boxes(
    found: Sequence[Measured], columns: Sequence[str], public: Callable[[str], str]
) -> dict[str, Any] | None:
    """The speed-ups of these columns over the prompts: five marks of a box (lowest, quartiles,
    highest; none around a single dot) and every dot with its category, as shares of the axis; None
    while there are none.
    """
    ratios = {
        c: [(m.figures.speedup, m.category) for m in found if m.column == c and m.figures.speedup]
        for c in columns
    }
    every = [ratio for values in ratios.values() for ratio, _ in values]
    other = {each.column for each in found if not each.figures.equal}
    same = set(columns) - other
    if not every:
        return None
    low, high = min(*every, 1.0), max(*every, 1.0)
    margin = (high - low) * 0.05 or 0.5  # all may be exactly as fast as the baseline
    low, high = low - margin, high + margin

    def place(value: float) -> float:
        return round((value - low) / (high - low), 4)

    return {
        "one": place(1.0),
        "ticks": [[place(value), factor(value)] for value in _ticks(low, high)],
        "rows": [
            [
                public(column) if column in same else f"{public(column)}, different text",
                list(map(place, _marks([ratio for ratio, _ in values]))),
                [[place(ratio), public(f"{kind} {factor(ratio)}")] for ratio, kind in values],
                factor(float(np.median([ratio for ratio, _ in values]))) + public(_range(values)),
            ]
            for column, values in ratios.items()
            if values
        ],
    }


def _marks(values: Sequence[float]) -> list[float]:
    """The five marks of a box around these values; none for a single one."""
    marks = np.percentile(values, (0, 25, 50, 75, 100))
    return list(map(float, marks)) if len(values) > 1 else []


def _range(values: Sequence[tuple[float, str]]) -> str:
    """The lowest and the highest value, behind a median, with their categories where there are
    several; "" of a single one.
    """
    if len(values) < 2:
        return ""
    (low, worst), (high, best) = min(values), max(values)
    if len({kind for _, kind in values}) == 1:
        return f", {low:.2f}{DASH}{high:.2f}"
    return f", {low:.2f} ({worst}) to {high:.2f} ({best})"


def _ticks(low: float, high: float) -> list[float]:
    """Round values on an axis, six at most."""
    step = next(s for s in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 50, 1e3, 1e9) if (high - low) / s < 6)
    return [round(n * step, 2) for n in range(ceil(low / step), floor(high / step) + 1)]


def _files(standing: Standing, public: Callable[[str], str]) -> dict[str, str]:
    """What the page offers to save: results as the command line's `bench --json` prints them, and
    every measurement as CSV.
    """
    found = [
        (each.column, each.category, each.prompt, *each.figures.model_dump().values())
        for each in standing.found
    ]
    table = csv_of([("column", "category", "prompt", *Figures.model_fields), *found])
    return {
        "json": public(json.dumps([asdict(result) for result in standing.results])),
        "csv": public(table),
    }
