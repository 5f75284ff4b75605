"""The one table of figures: what each is called, computed from and written as.

Cards, tables, the command line, the bench and the glossary read it; nothing else lists figures.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor
from statistics import mean
from typing import Literal

from backend.results.intervals import UNKNOWN, Ratio
from backend.results.metrics import Score

NONE = DASH = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"

#: Positions of guesses that are written out.
FEW = 8

#: Where a figure stands: on the page, in the tables of files, and in the command line's summary,
#: which has little room.
Place = Literal["page", "table", "summary"]


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit. `text` writes a value with it, `cell` a value below a heading that names it."""

    name: str
    text: Callable[[float], str]
    cell: Callable[[float], str]


def no_interval(_score: Score, _baseline: Score) -> Ratio:
    """The interval of a figure that is not a ratio of two columns."""
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
    places: tuple[Place, ...] = ("page", "table")
    ratio: Callable[[Score, Score], Ratio] = no_interval

    @property
    def heading(self) -> str:
        """The title, with the unit that `cell` leaves out."""
        return f"{self.title}, {self.unit.name}" if self.unit is MILLISECONDS else self.title

    def text(self, score: Score, baseline: Score) -> str:
        """The value with its unit."""
        return self._written(self.unit.text, score, baseline)

    def cell(self, score: Score, baseline: Score) -> str:
        """The value below `heading`."""
        return self._written(self.unit.cell, score, baseline)

    def _written(self, form: Callable[[float], str], score: Score, baseline: Score) -> str:
        value = self.value(score, baseline)
        return NONE if value is None else form(value) + span(self.ratio(score, baseline))


def duration(seconds: float) -> str:
    """Seconds, in a unit that fits: 2.80 s, 45.1 ms."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds >= 0.1:
        return f"{seconds * 1e3:.0f} ms"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 0.001 else f"{seconds * 1e3:.2f} ms"


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


def ordinal(number: int, *, shared: bool = False) -> str:
    """1st, 2nd and so on, =2nd of a place that others share; a dash of 0, which is no place."""
    if not number:
        return NONE
    ending = "th" if number in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{'=' * shared}{number}{ending}"


def factor(ratio: float) -> str:
    """A factor: 1.33 with a multiplication sign."""
    return f"{ratio:.2f}{TIMES}"


def as_long(speedup: float) -> str:
    """How much of the baseline's time a program took, by its speed-up: 2.65 times as long, where
    that is 0.38.
    """
    return f"{factor(1 / speedup)} as long"


def span(ratio: Ratio) -> str:
    """The interval behind a ratio, " (1.15-1.27)" with a dash; "" where there is none."""
    return f" ({ratio.low:.2f}{DASH}{ratio.high:.2f})" if ratio.known else ""


def likely(ratio: Ratio) -> str:
    """A factor and its interval: 1.33 (1.28-1.38) with a multiplication sign and a dash."""
    return f"{factor(ratio.value)}{span(ratio)}"


def milliseconds(value: float) -> str:
    """Milliseconds with three digits, or with all if there are more."""
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


MILLISECONDS = Unit("ms", lambda value: duration(value / 1e3), milliseconds)
RATE = Unit("tokens/s", rate, rate)
RATIO = Unit(TIMES, factor, factor)
MEAN = Unit("tokens", "{:.2f}".format, "{:.2f}".format)
SHARE = Unit("%", "{:.0%}".format, "{:.0%}".format)
TOKENS = Unit("tokens", "{:,.0f}".format, "{:,.0f}".format)
ROWS = Unit("rows", "{:,.0f}".format, "{:,.0f}".format)


def _positive(value: Callable[[Score], float]) -> Callable[[Score, Score], float | None]:
    """A value where 0 means that it is unknown."""
    return lambda score, _: value(score) or None


def _whole(score: Score, baseline: Score) -> float | None:
    same = score.text == baseline.text and score.clock == baseline.clock
    ended = score.state == baseline.state == "done" and score.seconds
    return baseline.seconds / score.seconds if same and ended and not score.fed else None


def _pass_cost(score: Score, baseline: Score) -> float | None:
    gain = 0.0 if score.fed else score.gain_over(baseline).value
    return score.tokens_per_forward / gain or None if gain else None


def _predicted(score: Score, baseline: Score) -> float | None:
    """By what passes cost as it is known at the end. None where a column that declined something
    says what it expected before, which this would contradict, and where the baseline runs on
    another model, because it is over plain decoding on the column's own.
    """
    other = baseline.spec and score.spec != baseline.spec
    return None if score.decision.declined or other else score.predicted or None


def _agreed(score: Score, baseline: Score) -> float | None:
    same, compared = score.agreement_with(baseline)
    return same / compared if same < compared else None


def _in_tenths(share: float) -> str:
    """Rounded down, so that 100 % is said of all alone."""
    return f"{floor(share * 1e3) / 10:.1f}%"


AGREED = Unit("%", _in_tenths, _in_tenths)

FIGURES = (
    Figure(
        "speedup",
        "speed-up",
        RATIO,
        "How many times as fast as KV reuse the column decodes, while both run. It equals tokens "
        "per pass divided by time per pass. Example: 2 tokens per pass, time per pass 1.5: 1.33. "
        "The brackets show the 95% interval of this race (block bootstrap over its slices); the "
        "machine may differ in the next race. A column is called faster or slower only if its "
        "interval does not contain 1. For short races, programs and servers, it is the ratio of "
        "the times.",
        lambda score, baseline: score.gain_over(baseline).value or None,
        ("page", "table", "summary"),
        Score.gain_over,
    ),
    Figure(
        "whole",
        "speed-up with prompt",
        RATIO,
        "The speed-up over KV reuse for the whole answer, the prompt included, if both wrote the "
        "same text. Example: 2.0 s against 3.0 s: 1.50.",
        _whole,
    ),
    Figure(
        "ttft",
        "TTFT",
        MILLISECONDS,
        "Time to first token: reading the prompt, compiling a grammar if there is one, and "
        "choosing the first token. The first prompt of a new length takes longer, which slows the "
        "first column. Example: 300 tokens at 1 ms each: 300 ms.",
        lambda score, _: score.ttft * 1e3 if score.steps else None,
        ("page", "table", "summary"),
    ),
    Figure(
        "tpot",
        "TPOT",
        MILLISECONDS,
        "Time per output token after the first one, on average. Example: 100 tokens in 2 s: 20 ms.",
        _positive(lambda score: score.tpot * 1e3),
        ("page", "table", "summary"),
    ),
    Figure(
        "rate",
        "tokens/s",
        RATE,
        "Tokens a second after the first one: 1 / TPOT. Example: a TPOT of 20 ms: 50 tokens/s.",
        _positive(lambda score: score.tokens_per_second),
        ("page", "table", "summary"),
    ),
    Figure(
        "tokens_per_forward",
        "tokens per pass",
        MEAN,
        "Tokens written in one pass of the model, on average, after the first token. KV reuse "
        "writes 1. Example: 4 guesses of which 2 are right, and the model's own token: 3.",
        _positive(lambda score: score.tokens_per_forward),
        ("page", "table", "summary"),
    ),
    Figure(
        "pass_cost",
        "time per pass",
        RATIO,
        "The time of a pass, drafting and masks included, relative to a one-token pass. The "
        "speed-up is tokens per pass divided by this. Example: 30 ms, one-token passes of 20 ms: "
        "1.50.",
        _pass_cost,
        ("page",),
    ),
    Figure(
        "predicted",
        "predicted",
        RATIO,
        "The speed-up over KV reuse on the same model, computed from the measured times of passes "
        "and drafts. Example: 2 tokens per pass of 15 ms, one-token passes of 10 ms: 1.33.",
        _predicted,
        ("table",),
    ),
    Figure(
        "drafted",
        "drafted",
        TOKENS,
        "Guessed tokens that the model checked; tokens that a grammar forced are not counted. "
        "Example: 20 passes with 4 guesses each: 80.",
        _positive(lambda score: score.drafted),
    ),
    Figure(
        "accepted",
        "accepted",
        SHARE,
        "The acceptance rate: the share of guessed tokens that the model accepted. Example: 60 of "
        "80: 75%.",
        lambda score, _: score.acceptance if score.drafted else None,
        ("page", "table", "summary"),
    ),
    Figure(
        "agreement",
        "agreement",
        AGREED,
        "For a column whose text differs from that of KV reuse: the share of equal tokens, up to "
        "and including the first difference. One race says little; a benchmark pools all its "
        "prompts. At fp32 and the exact precisions, columns of one model agree. Example: 99 equal "
        "tokens, then a different one: 99%.",
        _agreed,
    ),
    Figure(
        "drafting",
        "drafting",
        SHARE,
        "Share of the column's time that guessing took. Example: 0.5 s of 5 s: 10%.",
        _positive(lambda score: score.parts.get("draft", 0.0) / (score.seconds or 1)),
    ),
    Figure(
        "mask_compute",
        "mask compute",
        MILLISECONDS,
        "Time to find the tokens that a grammar allows, on average per mask. Most of it overlaps "
        "with the pass. Example: 0.1 ms beside a pass of 20 ms.",
        lambda score, _: mean(score.masks) * 1e3 if score.masks else None,
        ("page", "table", "summary"),
    ),
    Figure(
        "mask_wait",
        "mask wait",
        MILLISECONDS,
        "Time that a pass waits for the grammar's mask, on average. Example: 0.02 ms, when the "
        "rest of the mask overlapped with the pass.",
        lambda score, _: score.parts.get("mask", 0.0) / score.steps * 1e3 if score.masks else None,
        ("page", "table", "summary"),
    ),
    Figure(
        "forced",
        "forced",
        TOKENS,
        "Tokens for which the grammar allowed only one choice. Example: the name and the colon of "
        "a JSON field.",
        lambda score, _: float(score.forced) if score.masks else None,
    ),
    Figure(
        "reused",
        "reused",
        TOKENS,
        "First tokens of the prompt that the column's cache held from its last run. Example: the "
        "same document with a new question.",
        _positive(lambda score: score.reused),
    ),
    Figure(
        "rows",
        "rows",
        ROWS,
        "Tokens that the model computed in all, with the prompt and wrong guesses. Example: a "
        "prompt of 50 tokens and 10 passes over 5 rows: 100.",
        _positive(lambda score: score.rows),
    ),
    Figure(
        "tokens",
        "tokens",
        TOKENS,
        "Tokens written. The end-of-text token counts; a text that its grammar ends has none. "
        "Example: a limit of 128 is reached after 128.",
        _positive(lambda score: score.length),
        ("page", "table", "summary"),
    ),
    Figure(
        "time",
        "time with prompt",
        MILLISECONDS,
        "The column's time on its own clock in this run. Example: 2.8 s in a race of 14 s.",
        _positive(lambda score: score.seconds * 1e3),
    ),
)


def figures(place: Place) -> tuple[Figure, ...]:
    """The figures that stand there, in order."""
    return tuple(figure for figure in FIGURES if place in figure.places)


def leading(score: Score) -> tuple[Figure, ...]:
    """The two figures that say most about a column, beside its speed-up."""
    speed = "time" if score.fed else "rate"
    several = score.drafted or score.forced or score.tokens_per_forward > 1
    return figure(speed), figure("tokens_per_forward" if several else "ttft")


def figure(name: str) -> Figure:
    """The figure of that name. Raises KeyError if there is none."""
    return {entry.name: entry for entry in FIGURES}[name]


def glossary() -> list[tuple[str, str, str]]:
    """Title, unit and help of every figure."""
    return [(entry.title, entry.unit.name, entry.help) for entry in FIGURES]
