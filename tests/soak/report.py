"""What a row of the soak found: figures against bars, and what went wrong, as tables to keep."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace

from pydantic import TypeAdapter

#: Sentences on single failures that a report keeps; the rest is counted.
KEPT = 20

#: What no row may find.
BROKEN = "tracebacks in the server's log, and other breakdowns"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured thing. `bar` says in words what it must be, "" for a figure without a bar.

    `timed` figures are seconds, which say little on a machine that does other things as well.
    """

    what: str
    value: float | int | str
    bar: str = ""
    ok: bool = True
    timed: bool = False


def noted(what: str, value: float | str) -> Figure:
    """A figure without a bar."""
    return Figure(what, _short(value))


def at_most(what: str, value: float, limit: float) -> Figure:
    """A figure that must not exceed `limit`."""
    return Figure(what, _short(value), f"at most {limit:g}", value <= limit)


def within(what: str, seconds: float, limit: float) -> Figure:
    """Seconds, or a figure that follows from them, that must not exceed `limit`."""
    return replace(at_most(what, seconds, limit), timed=True)


def at_least(what: str, value: float, limit: float) -> Figure:
    """A figure that must reach `limit`."""
    return Figure(what, _short(value), f"at least {limit:g}", value >= limit)


def none_of(what: str, found: Sequence[object]) -> Figure:
    """A count of things that must not be."""
    return Figure(what, len(found), "none", not found)


def _short(value: float | str) -> float | str:
    return round(value, 3) if isinstance(value, float) else value


@dataclass(frozen=True, slots=True)
class Result:
    """What a row found. `size` says how much was tried, `remarks` what went wrong, one by one."""

    row: str
    size: str
    figures: tuple[Figure, ...]
    remarks: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    @property
    def passed(self) -> bool:
        return all(figure.ok for figure in self.figures)

    @property
    def sound(self) -> bool:
        """Whether all bars are held but those of seconds."""
        return all(figure.ok or figure.timed for figure in self.figures)


class Log:
    """What a row notes as it goes: counts, seconds by what was timed, and sentences by what must
    not be, the server's tracebacks among it.
    """

    def __init__(self, *wrong: str) -> None:
        self.counts: Counter[str] = Counter()
        self.seconds: dict[str, list[float]] = {}
        self.wrong: dict[str, list[str]] = {what: [] for what in (*wrong, BROKEN)}

    def flaw(self, what: str, sentence: str) -> None:
        self.wrong[what].append(sentence)

    def took(self, what: str, seconds: float) -> None:
        self.seconds.setdefault(what, []).append(seconds)

    def longest(self, limit: float) -> list[Figure]:
        """The bar of each thing that was timed."""
        return [within(f"{what}, at most", max(took), limit) for what, took in self.seconds.items()]

    def result(
        self, row: str, size: str, figures: Iterable[Figure] = (), remarks: Sequence[str] = ()
    ) -> Result:
        """The row's result: these figures, the counts, and that nothing is wrong. Remarks are cut
        to what a report keeps.
        """
        said = [*remarks, *(sentence for found in self.wrong.values() for sentence in found)]
        kept = [f"{remark:.400}" for remark in said[:KEPT]]
        if len(said) > KEPT:
            kept.append(f"... and {len(said) - KEPT} more")
        counts = (noted(what, count) for what, count in sorted(self.counts.items()))
        bars = (none_of(what, found) for what, found in self.wrong.items())
        return Result(row, size, (*figures, *counts, *bars), tuple(kept))


_RESULTS = TypeAdapter(list[Result])


def as_json(results: Sequence[Result]) -> str:
    """The results, with `passed` beside each."""
    return json.dumps([{**asdict(r), "passed": r.passed} for r in results], indent=1)


def read_json(text: str) -> list[Result]:
    """What `as_json` wrote."""
    return _RESULTS.validate_json(text)


def as_markdown(results: Sequence[Result]) -> str:
    """A table of all figures, and below it the remarks."""
    lines = ["| row | figure | value | bar | |", "|---|---|---|---|---|"]
    for r in results:
        lines.append(f"| **{r.row}** | {r.size} | {r.seconds:.0f} s | | {_mark(r.passed)} |")
        lines += [f"| | {f.what} | {f.value} | {f.bar} | {_mark(f.ok)} |" for f in r.figures]
    for r in (r for r in results if r.remarks):
        lines += ["", f"{r.row}:", *(f"- {' '.join(remark.split())}" for remark in r.remarks)]
    return "\n".join(lines) + "\n"


def _mark(ok: bool) -> str:
    return "passed" if ok else "**FAILED**"


def curve(memory: Sequence[tuple[float, int, int]]) -> str:
    """Memory over time, at ten moments: seconds, and bytes of the page and of the worker."""
    chosen = memory[:: max(1, len(memory) // 10)]
    looks = (f"{t / 60:.0f} min {page / 1e6:.0f}/{w / 1e6:.0f}" for t, page, w in chosen)
    return f"memory of page/worker in MB: {'; '.join(looks)}"
