"""The benchmark of a line-up: every column alone on every prompt, as the command line's `bench`.

Each prompt is a race of its own in line, so that other visitors' races run in between. The server
keeps nothing: a visitor who comes back, to another process even, goes on from the rows that the
browser kept.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from backend.bench.plan import Plan
from backend.bench.prompts import PROMPTS, Prompt, prompts_in
from backend.bench.rows import Figures, OtherPlanError, Row, left_of, rows_in
from backend.bench.runner import Work
from backend.bench.summary import ALL, ColumnResult, Measured, failures, measured, results
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
    "prompts",
    "tpot",
    "ttft",
    "mask",
)

Phase = Literal["warming up", "running", "stopped", "ended"]


@dataclass(frozen=True)
class Standing:
    """A benchmark at a moment: what is to be measured, and the rows of what has been."""

    plan: Plan
    rows: Sequence[Row] = field(default=())
    phase: Phase = "warming up"

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
    def status(self) -> str:
        """How far it is, in a sentence."""
        total, done = len(self.plan.jobs), len(self.rows)
        match self.phase:
            case "ended":
                return f"{total} of {total} prompts measured, every column alone."
            case "stopped":
                return f"Stopped after {done} of {total} prompts: Resume continues."
            case "warming up":
                return "Warming up: the first prompt runs once and is not counted."
        left = sum(row.seconds for row in self.rows) / max(done, 1) * (total - done)
        minutes = f", about {max(1, round(left / 60))} min left" if left >= 60 else ""
        seconds = f", about {max(1, round(left))} s left" if 0 < left < 60 else ""
        return f"Prompt {done + 1} of {total}{minutes or seconds}."


class Benchmarks:
    """The visitors' benchmarks. Nothing that they send is trusted."""

    def __init__(self, visitors: Visitors, offer: Offer) -> None:
        self._visitors = visitors
        self._offer = offer

    async def start(
        self, visitor: str, values: Values, prompts: Any, repeats: Any, before: Any = ""
    ) -> AsyncIterator[View]:
        """The views of a benchmark, as `measure` has it; one with "alert" for what is refused."""
        try:
            async for standing in self.measure(visitor, values, prompts, repeats, before):
                yield benchmark_view(standing, self._offer.public)
        except Exception as error:
            yield {"alert": self._offer.public(explain(error))}

    async def measure(
        self, visitor: str, values: Values, prompts: Any, repeats: Any, before: Any = ""
    ) -> AsyncIterator[Standing]:
        """Measure the form's line-up, and tell how it stands after each prompt; `prompts` as text,
        "": ours. It goes on from `before`, an earlier view's "kept"; "": it is a new one. The first
        prompt runs once more at the start and is not counted, as a cold machine is slower. Raises
        DerbyError.
        """

        def made() -> tuple[Plan, list[Row]]:
            plan = self._plan(values, prompts, repeats)
            return plan, _go_on(plan, before) if before != "" else []

        plan, rows = await asyncio.to_thread(made)  # the page does not wait meanwhile
        work = Work(plan, rows)
        with self._visitors.series(visitor) as stopped:
            while work.waiting:
                yield Standing(plan, tuple(rows), "warming up" if work.cold else "running")
                job = work.take()
                board = None if stopped() else await self._visitors.measure(visitor, job.race)
                if board is None or any(score.state == "stopped" for score in board.scores):
                    yield Standing(plan, tuple(rows), "stopped")
                    return
                if (row := work.row(job, board, self._offer.public)) is not None:
                    rows.append(row)
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
    if len(chosen) * times > most:
        often = "once" if times == 1 else f"{times:,} times"
        raise DerbyError(
            f"{counted(len(chosen), 'prompt')}, {often} each, are more than the {most:,} runs that "
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
    """A benchmark as plain JSON for the page: every word and figure ready to be shown. "left" is
    its status if it is left now, "kept" the rows that it can then go on from.
    """
    plan, rows, known = standing.plan, standing.rows, standing.results
    left_out = unshown(known)
    shown = [name for name in _SHOWN if name not in left_out]
    left = standing if standing.phase == "ended" else Standing(plan, rows, "stopped")
    return {
        "phase": standing.phase,
        "status": standing.status,
        "left": left.status,
        "share": round(len(rows) / len(plan.jobs), 4),
        "headings": _chosen(shown, headings(ColumnResult)) if known else [],
        "groups": [
            [
                category,
                [
                    list(map(public, _chosen(shown, cells(result))))
                    for result in known
                    if (result.category, result.machine) == (category, ALL)
                ],
            ]
            for category in dict.fromkeys(result.category for result in known)
        ],
        "boxes": _boxes(standing.found, public),
        "failures": failures(plan, rows),
        "kept": "".join(row.line for row in rows),
        "files": _files(standing, public) if standing.over and known else None,
    }


def _chosen(names: Sequence[str], of_all_fields: Iterable[str]) -> list[str]:
    """What stands for these fields of a result."""
    every = dict(zip(ColumnResult.__dataclass_fields__, of_all_fields, strict=True))
    return [every[name] for name in names]


def _boxes(found: Sequence[Measured], public: Callable[[str], str]) -> dict[str, Any] | None:
    """The speed-ups over the prompts, column by column: five marks of a box (lowest, quartiles,
    highest) and every dot, as shares of the axis; None while there are none.
    """
    columns = list(dict.fromkeys(each.column for each in found))[1:]  # without the baseline
    ratios = {
        c: [m.figures.speedup for m in found if m.column == c and m.figures.speedup]
        for c in columns
    }
    every = [ratio for values in ratios.values() for ratio in values]
    if not every:
        return None
    low, high = min(*every, 1.0), max(*every, 1.0)
    margin = (high - low) * 0.05 or 0.5  # all may be exactly as fast as the baseline
    low, high = low - margin, high + margin

    def place(value: float) -> float:
        return round((value - low) / (high - low), 4)

    return {
        "one": place(1.0),
        "rows": [
            [
                public(column),
                [place(float(mark)) for mark in np.percentile(values, (0, 25, 50, 75, 100))],
                [place(value) for value in values],
                f"{factor(float(np.median(values)))}, {min(values):.2f}{DASH}{max(values):.2f}",
            ]
            for column, values in ratios.items()
            if values
        ],
    }


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
