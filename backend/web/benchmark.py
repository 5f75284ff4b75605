"""The benchmark of a line-up: every column alone on every prompt, as the command line's `bench`.

Each prompt is a race of its own in line, so that other visitors' races run in between.
"""

import asyncio
import csv
import io
import json
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from backend.bench.prompts import PROMPTS, Prompt, prompts_in
from backend.bench.runs import with_baseline
from backend.bench.solo import ColumnResult, Measured, results
from backend.bench.tables import cells, headings, unshown
from backend.errors import DerbyError, explain
from backend.results.figures import DASH, factor
from backend.web.benchmark_run import Benchmark, go_on, kept
from backend.web.form import Values, read_race, read_whole
from backend.web.offer import Offer
from backend.web.view import View
from backend.web.visitors import Visitors

#: Characters of a prompt set.
MOST_TEXT = 200_000

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


class Benchmarks:
    """The visitors' benchmarks. Nothing that they send is trusted."""

    def __init__(self, visitors: Visitors, offer: Offer) -> None:
        self._visitors = visitors
        self._offer = offer
        self._kept: OrderedDict[str, Benchmark] = OrderedDict()  # the latest one last

    async def start(
        self, visitor: str, values: Values, prompts: Any, repeats: Any, before: Any = ""
    ) -> AsyncIterator[View]:
        """The views of a benchmark of the form's line-up; `prompts` as text, "": ours. It goes on
        from `before`, the JSON text of an earlier view's "kept"; "": it is a new one.
        """

        def made() -> Benchmark:
            chosen = _read_prompts(prompts, repeats, self._offer)
            race = read_race({**values, "prompt": chosen[0].text}, self._offer)
            bench = Benchmark(replace(race, columns=with_baseline(race.columns)), chosen)
            if before != "":
                go_on(bench, before)
            return bench

        try:
            bench = await asyncio.to_thread(made)  # the page does not wait meanwhile
            self._keep(visitor, bench)
            async for view in self._measured(visitor, bench):
                yield view
        except Exception as error:
            yield {"alert": self._offer.public(explain(error))}

    def results(self, visitor: str) -> list[ColumnResult]:
        """What the visitor's benchmark has come to, on all prompts together; the baseline first."""
        kept = self._kept.get(visitor)
        found = results(kept.found) if kept and kept.found else []
        return [result for result in found if result.category == "all"]

    def _keep(self, visitor: str, bench: Benchmark) -> None:
        self._kept[visitor] = bench
        self._kept.move_to_end(visitor)
        while len(self._kept) > self._offer.limits.visitors:
            self._kept.popitem(last=False)

    async def _measured(self, visitor: str, bench: Benchmark) -> AsyncIterator[View]:
        """Measure what is left, each view after a prompt; the first one is run once beforehand,
        unheeded, as a cold machine is slower.
        """
        public, warm = self._offer.public, False
        while bench.done < len(bench.prompts):
            yield benchmark_view(bench, "running" if warm else "warming up", public)
            prompt = bench.prompts[bench.done].text
            first = bench.done % len(bench.race.columns)
            race = replace(
                bench.race, request=replace(bench.race.request, prompt=prompt), first=first
            )
            begun = time.monotonic()
            board = await self._visitors.measure(visitor, race)
            if any(score.state == "stopped" for score in board.scores):
                yield benchmark_view(bench, "stopped", public)
                return
            if warm:
                bench.add(board, time.monotonic() - begun)
            warm = True
        yield benchmark_view(bench, "ended", public)


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
        raise DerbyError(
            f"{len(chosen):,} prompts, {times:,} times each, are more than the {most:,} runs that "
            "a benchmark may have here: choose fewer."
        )
    return chosen * times


def benchmark_view(bench: Benchmark, phase: str, public: Callable[[str], str] = str) -> View:
    """A benchmark as plain JSON for the page: every word and figure ready to be shown. "left" is
    its status if it is left now, "kept" what it can then go on from.
    """
    known = results(bench.found) if bench.found else []
    lines = [(result, _line(result, known, public)) for result in known]
    ended = phase in ("ended", "stopped")
    failures = [public(sentence) for sentence in bench.failures]
    return {
        "phase": phase,
        "status": _status(bench, phase),
        "left": _status(bench, "ended" if phase == "ended" else "stopped"),
        "share": round(bench.done / len(bench.prompts), 4),
        "headings": _headings(known),
        "groups": [
            [category, [line for result, line in lines if result.category == category]]
            for category in dict.fromkeys(result.category for result in known)
        ],
        "boxes": _boxes(bench.found, public),
        "failures": failures,
        "kept": {**kept(bench), "failures": failures},
        "files": _files(bench.found, known, public) if ended and known else None,
    }


def _status(bench: Benchmark, phase: str) -> str:
    total, done = len(bench.prompts), bench.done
    match phase:
        case "ended":
            return f"{total} of {total} prompts measured, every column alone."
        case "stopped":
            return f"Stopped after {done} of {total} prompts: Resume goes on."
        case "warming up":
            return "Warming up: the first prompt is run once, unheeded."
        case _:
            left = bench.left
            minutes = f", some {max(1, round(left / 60))} min left" if left >= 60 else ""
            seconds = f", some {max(1, round(left))} s left" if 0 < left < 60 else ""
            return f"Prompt {done + 1} of {total}{minutes or seconds}."


def _headings(known: Sequence[ColumnResult]) -> list[str]:
    every = dict(zip(ColumnResult.__dataclass_fields__, headings(ColumnResult), strict=True))
    return [every[name] for name in _SHOWN if name not in unshown(known)]


def _line(
    result: ColumnResult, known: Sequence[ColumnResult], public: Callable[[str], str]
) -> list[str]:
    every = dict(zip(ColumnResult.__dataclass_fields__, cells(result), strict=True))
    return [public(every[name]) for name in _SHOWN if name not in unshown(known)]


def _boxes(found: Sequence[Measured], public: Callable[[str], str]) -> dict[str, Any] | None:
    """The speed-ups over the prompts, column by column: five marks of a box (lowest, quartiles,
    highest) and every dot, as shares of the axis; None while there are none.
    """
    columns = list(dict.fromkeys(each.column for each in found))[1:]  # without the baseline
    ratios = {c: [m.speedup for m in found if m.column == c and m.speedup] for c in columns}
    every = [ratio for values in ratios.values() for ratio in values]
    if not every:
        return None
    low, high = min(*every, 1.0), max(*every, 1.0)
    low, high = low - (high - low) * 0.05, high + (high - low) * 0.05 or 1.0

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


def _files(
    found: Sequence[Measured], known: Sequence[ColumnResult], public: Callable[[str], str]
) -> dict[str, str]:
    """What the page offers to save: results as the command line's `bench --json` prints them, and
    every measurement as CSV.
    """
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(Measured.__dataclass_fields__)
    for each in found:
        writer.writerow(asdict(each).values())
    return {
        "json": public(json.dumps([asdict(result) for result in known])),
        "csv": public(table.getvalue()),
    }
