"""What forward passes cost: T(k), the seconds of one pass over k rows.

From it follows what speculation can gain: a step that verifies k - 1 guesses costs T(k) / T(1)
one-token passes, so it pays only while it commits more tokens than that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log

#: Tokens before the measured rows: what T(k) is quoted at.
CONTEXT = 128

#: Passes that the running scale remembers, and the logarithm by which one may differ and count in
#: full: something else may have held it up.
MEMORY, SURPRISE = 40, log(1.5)


@dataclass(frozen=True, slots=True)
class PassCosts:
    """Seconds of a forward pass over each of `widths` rows, ascending, the first 1, behind CONTEXT
    tokens. `width_change`: what a pass costs on top when the one before it had another number of
    rows. `context_slope`: seconds that each token more adds to any pass, and to it for each of its
    rows. `assumed`: nothing of it was measured.
    """

    widths: tuple[int, ...]
    seconds: tuple[float, ...]
    width_change: float = 0.0
    context_slope: tuple[float, float] = (0.0, 0.0)
    assumed: bool = False

    def __call__(self, rows: float, context: int = CONTEXT) -> float:
        """Seconds of a pass over so many rows behind so many tokens: between the measured widths,
        and beyond them, on straight lines. A slope that was measured too steep, on a busy machine,
        takes off half at most.
        """
        (each, row), near, widths = self.context_slope, self.seconds[0], self.widths
        if len(widths) > 1:
            last = len(widths) - 2
            i = next((i for i in range(last) if rows <= widths[i + 1]), last)
            share = (rows - widths[i]) / (widths[i + 1] - widths[i])
            near = self.seconds[i] + (self.seconds[i + 1] - self.seconds[i]) * share
        return max(near / 2, near + (context - CONTEXT) * (each + row * rows))

    @property
    def known(self) -> bool:
        """False of UNKNOWN_COSTS, and of what is but assumed."""
        return len(self.widths) > 1 and not self.assumed

    @property
    def one_row(self) -> float:
        """Seconds of a pass over one row: a plain decode step."""
        return self.seconds[0]

    def relative(self, rows: float) -> float:
        """T(rows) / T(1): how many times as long as a one-token pass such a pass takes."""
        return self(rows) / self.one_row

    @property
    def now(self) -> "PassCosts":
        """The same costs: these never change."""
        return self

    def observe(self, rows: int, context: int, seconds: float) -> None:
        """Learn nothing."""


class RunningCosts:
    """A curve times one scale: how fast the machine is at the moment. Mutable; one for each loaded
    engine, which all columns on it tell of their passes. `now`: what passes cost at the moment.
    """

    def __init__(self, curve: PassCosts) -> None:
        self.curve = self.now = curve
        self._scale = 0.0  # a logarithm
        self._seen = 0

    def observe(self, rows: int, context: int, seconds: float) -> None:
        """Learn what a pass took, over so many rows behind so many tokens."""
        if seconds <= 0:
            return  # a clock too coarse to tell
        self._seen = min(self._seen + 1, MEMORY)
        surprise = log(seconds / self.now(rows, context))
        if self._seen > 1:
            surprise = max(-SURPRISE, min(surprise, SURPRISE))
        self._scale += surprise / self._seen
        curve, ratio = self.curve, exp(self._scale)
        (each, row), times = curve.context_slope, tuple(ratio * time for time in curve.seconds)
        change, slope = ratio * curve.width_change, (ratio * each, ratio * row)
        self.now = PassCosts(curve.widths, times, change, slope, curve.assumed)


Costs = PassCosts | RunningCosts

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
