"""What forward passes cost: T(k), the seconds of one pass over k rows.

From it follows what speculation can gain: a step that verifies k - 1 guesses costs T(k) / T(1)
one-token passes, so it pays only while it commits more tokens than that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

#: Tokens before the measured rows: what T(k) is quoted at.
CONTEXT = 128


@dataclass(frozen=True, slots=True)
class PassCosts:
    """Seconds of a forward pass over each of `widths` rows, ascending, the first 1.

    Behind CONTEXT tokens. `context_slope`: seconds that each token more adds to any
    pass, and to it for each of its rows. `width_change` is what a pass costs on top when the one
    before it had another number of rows. `assumed`: nothing of it was measured.
    """

    widths: tuple[int, ...]
    seconds: tuple[float, ...]
    width_change: float = 0.0
    context_slope: tuple[float, float] = (0.0, 0.0)
    assumed: bool = False

    def __call__(self, rows: int, context: int = CONTEXT) -> float:
        """Seconds of a pass over so many rows behind so many tokens: between the measured widths,
        and beyond them, on straight lines. A slope that was measured too steep, on a busy machine,
        takes off half at most.
        """
        (each, row), near = self.context_slope, self._near(rows)
        return max(near / 2, near + (context - CONTEXT) * (each + row * rows))

    def scaled(self, ratio: float) -> "PassCosts":
        """The same with each pass `ratio` times as long."""
        each, row = self.context_slope
        seconds = tuple(ratio * time for time in self.seconds)
        slope = (ratio * each, ratio * row)
        return PassCosts(self.widths, seconds, ratio * self.width_change, slope, self.assumed)

    def average(self, rows: float, context: int = CONTEXT) -> float:
        """Seconds of passes over so many rows on average."""
        low, high = (self(k, context) for k in (int(rows), int(rows) + 1))
        return low + (high - low) * (rows - int(rows))

    def _near(self, rows: int) -> float:
        if len(self.widths) == 1:
            return self.one_row
        index, share = self.between(rows)
        low, high = self.seconds[index : index + 2]
        return low + (high - low) * share

    def between(self, rows: int) -> tuple[int, float]:
        """The straight line that so many rows lie on: the index of the width where it begins, and
        how far they are on the way to the next one; beyond the last width, more than 1.
        """
        last = len(self.widths) - 2
        index = next((i for i in range(last) if rows <= self.widths[i + 1]), last)
        a, b = self.widths[index : index + 2]
        return index, (rows - a) / (b - a)

    @property
    def known(self) -> bool:
        """False of UNKNOWN_COSTS, and of what is but assumed."""
        return len(self.widths) > 1 and not self.assumed

    @property
    def now(self) -> "PassCosts":
        """The same costs: these never change."""
        return self

    @property
    def hoped(self) -> "PassCosts":
        """The same costs: these are taken for certain."""
        return self

    def observe(self, rows: int, context: int, seconds: float) -> None:
        """Learn nothing."""

    def observe_prompt(self, rows: int) -> None:
        """Learn nothing."""

    @property
    def one_row(self) -> float:
        """Seconds of a pass over one row: a plain decode step."""
        return self.seconds[0]

    def relative(self, rows: int) -> float:
        """T(rows) / T(1): how many times as long as a one-token pass such a pass takes."""
        return self(rows) / self.one_row


class Costs(Protocol):
    """What passes cost, as a drafter asks before each round: it may have changed since."""

    @property
    def now(self) -> PassCosts:
        """What they are believed to cost at the moment."""
        ...

    @property
    def hoped(self) -> PassCosts:
        """The least that they may well cost: what nobody has tried is worth a try."""
        ...

    def observe(self, rows: int, context: int, seconds: float) -> None:
        """Learn what the latest pass took, over so many rows behind so many tokens."""
        ...

    def observe_prompt(self, rows: int) -> None:
        """Learn that the latest pass read so many rows of a prompt: such a pass wants few logits
        or none, so its seconds tell nothing, but the pass behind it changes the width.
        """
        ...


#: The costs of an engine that states none: every pass costs the same.
UNKNOWN_COSTS = PassCosts((1,), (1e-3,))


def stated_costs(pass_seconds: Mapping[int, float]) -> PassCosts:
    """The costs that an engine states itself, by number of rows; UNKNOWN_COSTS if it states none,
    or not those of one row.
    """
    if 1 not in pass_seconds or len(pass_seconds) < 2:
        return UNKNOWN_COSTS
    widths = tuple(sorted(pass_seconds))
    return PassCosts(widths, tuple(pass_seconds[rows] for rows in widths))
