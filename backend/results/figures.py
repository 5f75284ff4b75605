"""The one table of figures: what each is called, computed from and written as.

Cards, tables, the command line, the bench and the glossary read it; nothing else lists figures.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean
from typing import Literal

from backend.results.intervals import UNKNOWN, Ratio
from backend.results.metrics import Score

NONE = DASH = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"

#: Where a figure stands: on a column's card, in the table of the result, and in the command line's
#: summary, which has little room.
Place = Literal["card", "table", "summary"]


@dataclass(frozen=True, slots=True)
class Unit:
    """What a figure is counted in. `text` writes a value to be read alone, `cell` one of many
    below a heading that names the unit.
    """

    name: str
    text: Callable[[float], str]
    cell: Callable[[float], str]


def no_interval(_score: Score, _baseline: Score) -> Ratio:
    """Of a figure that is no ratio of two columns."""
    return UNKNOWN


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a column. `value` computes it, in `unit`, from the column's score and the
    baseline's (an empty score where there is none); None while it is unknown.
    """

    name: str
    title: str
    unit: Unit
    help: str
    value: Callable[[Score, Score], float | None]
    places: tuple[Place, ...] = ("card", "table")
    ratio: Callable[[Score, Score], Ratio] = no_interval

    @property
    def heading(self) -> str:
        """The title, and the unit that `cell` leaves out."""
        return f"{self.title}, {self.unit.name}" if self.unit is MILLISECONDS else self.title

    def text(self, score: Score, baseline: Score) -> str:
        """The value with its unit, to be read alone."""
        return self._written(self.unit.text, score, baseline)

    def cell(self, score: Score, baseline: Score) -> str:
        """The value below `heading`."""
        return self._written(self.unit.cell, score, baseline)

    def _written(self, form: Callable[[float], str], score: Score, baseline: Score) -> str:
        value = self.value(score, baseline)
        return NONE if value is None else form(value) + span(self.ratio(score, baseline))


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds >= 0.1:
        return f"{seconds * 1e3:.0f} ms"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 0.001 else f"{seconds * 1e3:.2f} ms"


def rate(tokens_per_second: float) -> str:
    """Tokens a second, in as many digits as mean something."""
    return f"{tokens_per_second:,.0f}" if tokens_per_second >= 1000 else f"{tokens_per_second:.1f}"


def counted(number: float, noun: str) -> str:
    """So many of what `noun` names: 1 core, 1.5 cores, 1,200 tokens."""
    written = f"{number:,}" if isinstance(number, int) else f"{number:.3g}"
    return f"{written} {noun}" if number == 1 else f"{written} {noun}s"


def factor(ratio: float) -> str:
    """How many times as much."""
    return f"{ratio:.2f}{TIMES}"


def span(ratio: Ratio) -> str:
    """The interval behind a ratio, " (1.15-1.27)" with a dash; "" where there is none."""
    return f" ({ratio.low:.2f}{DASH}{ratio.high:.2f})" if ratio.known else ""


def milliseconds(value: float) -> str:
    """Milliseconds in three digits, or in all where there are more."""
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


MILLISECONDS = Unit("ms", lambda value: duration(value / 1e3), milliseconds)
RATE = Unit("tokens/s", rate, rate)
RATIO = Unit(TIMES, factor, factor)
MEAN = Unit("tokens", "{:.2f}".format, "{:.2f}".format)
SHARE = Unit("%", "{:.0%}".format, "{:.0%}".format)
TOKENS = Unit("tokens", "{:,.0f}".format, "{:,.0f}".format)
ROWS = Unit("token rows", "{:,.0f}".format, "{:,.0f}".format)


def _positive(value: Callable[[Score], float]) -> Callable[[Score, Score], float | None]:
    """A value of which 0 means unknown, or that there is nothing to say."""
    return lambda score, _: value(score) or None


FIGURES = (
    Figure(
        "speedup",
        "speed-up",
        RATIO,
        "Tokens that the column wrote over those that KV reuse wrote, while both were decoding: "
        "the machine was in the same state for both. Of columns that run alone, and of short "
        "runs, decode time of KV reuse over that of the column, for the same tokens of the answer; "
        "of a program, the whole times. It is the tokens per forward, divided by how many times as "
        "long as a plain step such a forward pass takes. In brackets the 95 % interval, for which "
        "slices of the time in which both ran are drawn anew: it is of this text on this machine; "
        "the bench, which draws prompts, tells of others. Only what has an interval without 1 is "
        "called faster or slower.",
        lambda score, baseline: score.gain_over(baseline).value or None,
        ("table", "summary"),
        Score.gain_over,
    ),
    Figure(
        "ttft",
        "TTFT",
        MILLISECONDS,
        "Time to first token: reading the prompt, by the target and by a draft, and choosing the "
        "first token; compiling a grammar included.",
        lambda score, _: score.ttft * 1e3 if score.steps else None,
        ("card", "table", "summary"),
    ),
    Figure(
        "tpot",
        "TPOT",
        MILLISECONDS,
        "Time per output token after those of the first step, over all that the column wrote.",
        _positive(lambda score: score.tpot * 1e3),
        ("card", "table", "summary"),
    ),
    Figure(
        "rate",
        "tokens/s",
        RATE,
        "Tokens a second after those of the first step: the inverse of TPOT.",
        _positive(lambda score: score.tokens_per_second),
        ("card", "table", "summary"),
    ),
    Figure(
        "tokens_per_forward",
        "tokens per forward",
        MEAN,
        "Tokens committed in one forward pass of the target, on average over those after the "
        "first step.",
        _positive(lambda score: score.tokens_per_forward),
        ("card", "table", "summary"),
    ),
    Figure(
        "predicted",
        "predicted",
        RATIO,
        "The speed-up over plain decoding on the same model that the measured costs of forward "
        "passes promise for the rows and the draft calls that there were.",
        _positive(lambda score: score.predicted),
    ),
    Figure(
        "drafted",
        "drafted",
        TOKENS,
        "Tokens that a drafter proposed and the target verified; those that a grammar forces are "
        "none of them.",
        _positive(lambda score: score.drafted),
    ),
    Figure(
        "accepted",
        "accepted",
        SHARE,
        "Share of the drafted tokens that the target confirmed: the acceptance rate. With total "
        "variation distance TV between draft and target, keeping the text accepts "
        "(1 - TV) / (1 + TV) of a draft's first tokens, keeping the distribution alone 1 - TV.",
        lambda score, _: score.acceptance if score.drafted else None,
        ("card", "table", "summary"),
    ),
    Figure(
        "drafting",
        "drafting",
        SHARE,
        "Share of the column's time that went into drafting.",
        _positive(lambda score: score.parts.get("draft", 0.0) / (score.seconds or 1)),
    ),
    Figure(
        "mask_compute",
        "mask compute",
        MILLISECONDS,
        "Time to find out which tokens a grammar allows, on average for each mask. Most of it runs "
        "while the forward pass does.",
        lambda score, _: mean(score.masks) * 1e3 if score.masks else None,
        ("card", "table", "summary"),
    ),
    Figure(
        "mask_wait",
        "mask wait",
        MILLISECONDS,
        "Time that a step waits for the grammar, on average: what the forward pass did not hide.",
        lambda score, _: score.parts.get("mask", 0.0) / score.steps * 1e3 if score.masks else None,
        ("card", "table", "summary"),
    ),
    Figure(
        "forced",
        "forced",
        TOKENS,
        "Tokens that a grammar left no choice about.",
        lambda score, _: float(score.forced) if score.masks else None,
    ),
    Figure(
        "reused",
        "reused",
        TOKENS,
        "First tokens of the prompt, and of an answer that goes on, whose keys and values an "
        "earlier answer of yours, or a snapshot, held already. Nobody else's are ever used.",
        _positive(lambda score: score.reused),
    ),
    Figure(
        "rows",
        "rows",
        ROWS,
        "Token rows that the target computed in all, the prompt and rejected guesses included.",
        _positive(lambda score: score.rows),
    ),
    Figure(
        "tokens",
        "tokens",
        TOKENS,
        "Tokens written in this run; those from before a Continue are not counted.",
        _positive(lambda score: score.written),
        ("table", "summary"),
    ),
    Figure(
        "time",
        "time",
        MILLISECONDS,
        "The column's own time in this run.",
        _positive(lambda score: score.seconds * 1e3),
        ("table",),
    ),
)


def figures(place: Place) -> tuple[Figure, ...]:
    """The figures that stand there, in order."""
    return tuple(figure for figure in FIGURES if place in figure.places)


def leading(score: Score) -> tuple[Figure, ...]:
    """The two figures that say most of a column, beside its speed-up."""
    speed = "time" if score.fed else "rate"
    cause = "ttft"
    if score.drafted or score.forced:  # a server tells of drafts, and not of passes
        cause = "tokens_per_forward" if score.clock == "own" else "accepted"
    return figure(speed), figure(cause)


def figure(name: str) -> Figure:
    """The figure of that name. Raises KeyError if there is none."""
    return {entry.name: entry for entry in FIGURES}[name]


def glossary() -> list[tuple[str, str, str]]:
    """Title, unit and line of help of every figure."""
    return [(entry.title, entry.unit.name, entry.help) for entry in FIGURES]
