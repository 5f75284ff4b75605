"""The one table of a race's figures: what each is called, computed from and written as.

Tables, files, the command line, the bench and the page read it; nothing else lists figures. Those
of a single pass stand in the board's step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import quantiles

from backend.results.intervals import Ratio
from backend.results.result import LEAST_TOKENS, Row

DASH = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"

#: Figures of the command line's table, which has little room.
SUMMARY = [
    "speedup",
    "whole_time",
    "ttft",
    "tpot",
    "characters",
    "tokens_per_pass",
    "pass_time",
    "accepted",
    "tokens",
]

#: Positions of guesses that are written out.
FEW = 8


def rate(tokens_per_second: float) -> str:
    """Tokens a second, with as many digits as mean something."""
    return f"{tokens_per_second:,.0f}" if tokens_per_second >= 1000 else f"{tokens_per_second:.1f}"


def counted(number: float, noun: str) -> str:
    """A number and what it counts: 1 core, 1.5 cores, 1,200 tokens."""
    written = f"{number:,}" if isinstance(number, int) else f"{number:.3g}"
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{written} {noun if number == 1 else plural}"


def by_position(positions: Sequence[tuple[int, int]]) -> str:
    """Which share of guesses 1, 2, 3, ... were accepted, of those (offered, accepted): 81%, 64%."""
    shares = [f"{accepted / offered:.0%}" for offered, accepted in positions if offered]
    return ", ".join([*shares[:FEW], *["\N{HORIZONTAL ELLIPSIS}"] * (len(shares) > FEW)])


def listed(names: Sequence[str]) -> str:
    """Names as a sentence lists them: A, B and C."""
    *most, last = names or [""]
    return f"{', '.join(most)} and {last}" if most else last


def factor(ratio: float) -> str:
    """A factor: 1.33 with a multiplication sign."""
    return f"{ratio:.2f}{TIMES}"


def span(ratio: Ratio) -> str:
    """The interval behind a ratio, " (1.15-1.27)" with a dash; "" where there is none."""
    return f" ({ratio.low:.2f}{DASH}{ratio.high:.2f})" if ratio.known else ""


def likely(ratio: Ratio) -> str:
    """A factor and its interval: 1.33 (1.28-1.38) with a multiplication sign and a dash."""
    return f"{factor(ratio.value)}{span(ratio)}"


def milliseconds(value: float) -> str:
    """Milliseconds with three digits, or with all if there are more."""
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


MEAN, SHARE, COUNT = "{:.2f}".format, "{:.0%}".format, "{:,.0f}".format


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a column: `value` makes it of the column's row of the result, None while it is
    unknown, and `write` a text of it, below `title`. docs/figures.md says what each is.
    """

    name: str
    title: str
    write: Callable[[float], str]
    value: Callable[[Row], float | None]

    def cell(self, row: Row) -> str:
        """The value below the title; a speed-up with its interval."""
        value = self.value(row)
        if value is None:
            return DASH
        return self.write(value) + (span(row.speedup) if self.name == "speedup" else "")


def _rate(row: Row, unit: str) -> float | None:
    return row.rate if row.rate and row.unit == unit else None


def _gap(row: Row, percent: int) -> float | None:
    """That percentile of the time between tokens; those of one step arrive together."""
    moments = row.until.moments
    arrivals = [moment.clock for moment in moments for _ in range(moment.tokens)]
    gaps = [after - before for before, after in pairwise(arrivals)]
    # A server may send text and count its tokens at the end alone.
    if len(gaps) < LEAST_TOKENS or not moments[0].tokens:
        return None
    return quantiles(gaps, n=100, method="inclusive")[percent - 1] * 1e3


FIGURES = (
    Figure("speedup", "speed-up (95% interval)", factor, lambda row: row.speedup.value or None),
    Figure("whole_time", "whole time", factor, lambda row: row.whole_time or None),
    Figure(
        "ttft", "TTFT, ms", milliseconds, lambda r: r.score.ttft * 1e3 if r.score.steps else None
    ),
    Figure("tpot", "TPOT, ms", milliseconds, lambda r: 1e3 / r.rate if _rate(r, "token") else None),
    Figure("itl_median", "ITL median, ms", milliseconds, lambda row: _gap(row, 50)),
    Figure("itl_p95", "ITL p95, ms", milliseconds, lambda row: _gap(row, 95)),
    Figure("itl_p99", "ITL p99, ms", milliseconds, lambda row: _gap(row, 99)),
    Figure("rate", "tokens/s", rate, lambda row: _rate(row, "token")),
    Figure("characters", "characters/s", rate, lambda row: _rate(row, "character")),
    Figure("tokens_per_pass", "tokens per pass", MEAN, lambda row: row.tokens_per_pass or None),
    Figure("pass_time", "time per pass", factor, lambda row: row.pass_time or None),
    Figure(
        "accepted", "accepted", SHARE, lambda r: r.until.acceptance if r.until.drafted else None
    ),
    Figure("drafted", "guessed", COUNT, lambda row: row.until.drafted or None),
    Figure("forced", "forced", COUNT, lambda r: float(r.until.forced) if r.score.masked else None),
    Figure("reused", "reused", COUNT, lambda row: row.score.reused or None),
    Figure("tokens", "tokens in all", COUNT, lambda row: row.score.length or None),
)


def figure(name: str) -> Figure:
    """The figure of that name. Raises KeyError if there is none."""
    return {entry.name: entry for entry in FIGURES}[name]
