"""What forward passes cost: T(k), the seconds of one pass over k rows.

From it follows what speculation can gain: a step that verifies k - 1 guesses costs T(k) / T(1)
plain steps, so it pays only while it commits more tokens than that.
"""

from collections.abc import Mapping
from dataclasses import dataclass

#: Tokens before the measured rows: what T(k) is quoted at.
CONTEXT = 128


@dataclass(frozen=True, slots=True)
class PassCosts:
    """Seconds of a forward pass over each of `widths` rows, ascending, the first 1.

    They are those behind CONTEXT tokens. `context_slope`: seconds that each token more adds to any
    pass, and to it for each of its rows. `width_change` is what a pass costs on top when the one
    before it had another number of rows.
    """

    widths: tuple[int, ...]
    seconds: tuple[float, ...]
    width_change: float = 0.0
    context_slope: tuple[float, float] = (0.0, 0.0)

    def __call__(self, rows: int, context: int = CONTEXT) -> float:
        """Seconds of a pass over so many rows behind so many tokens: between the measured widths,
        and beyond them, on straight lines.
        """
        each, row = self.context_slope
        return self._near(rows) + (context - CONTEXT) * (each + row * rows)

    def _near(self, rows: int) -> float:
        last = len(self.widths) - 2
        if last < 0:
            return self.one_row
        index = next((i for i in range(last) if rows <= self.widths[i + 1]), last)
        (a, b), (low, high) = self.widths[index : index + 2], self.seconds[index : index + 2]
        return low + (high - low) * (rows - a) / (b - a)

    @property
    def known(self) -> bool:
        """False of UNKNOWN_COSTS."""
        return len(self.widths) > 1

    @property
    def one_row(self) -> float:
        """Seconds of a pass over one row: a plain decode step."""
        return self.seconds[0]

    def relative(self, rows: int) -> float:
        """T(rows) / T(1): how many plain steps such a pass costs."""
        return self(rows) / self.one_row


#: The costs of an engine whose passes were not measured: every pass costs the same.
UNKNOWN_COSTS = PassCosts((1,), (1e-3,))


def stated_costs(pass_seconds: Mapping[int, float]) -> PassCosts:
    """The costs that an engine states itself, by number of rows; UNKNOWN_COSTS if it states none,
    or not those of one row.
    """
    if 1 not in pass_seconds or len(pass_seconds) < 2:
        return UNKNOWN_COSTS
    widths = tuple(sorted(pass_seconds))
    return PassCosts(widths, tuple(pass_seconds[rows] for rows in widths))
