"""Costs that correct themselves: a curve T(k) as a prior, and what passes then really took.

A pass over k rows is expected to take, in seconds,

    exp(scale) * (prior T(k) * exp(shape(k)) + exp(change) * prior width change + prior slope)

`scale` is how fast the machine is at the moment and moves quickly; `shape`, 0 at one row, is what
the prior has wrong about T(k) / T(1) and moves slowly. An extended Kalman filter over scale, change
and the shape at the prior's widths is told of every pass: a pass over one row says what the scale
is, a wide one behind it what the shape is, and what is seen of one width is believed, by their
covariance, of its neighbours too.

Running averages by width over a common scale are half as long and were tried in its place. In
simulated races from five stored curves they reached 0.93 to 1.00 of the true curve's speed-up, this
filter 0.99 to 1.00.
"""

from dataclasses import dataclass
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from backend.costs.pass_costs import PassCosts

Floats = NDArray[np.float64]

#: Where in the filter's state stand scale, change, and the shape of the prior's second width.
SCALE, CHANGE, SHAPE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Doubt:
    """How wrong a prior may be: standard deviations of logarithms.

    trend: of the shape for each doubling of the rows, the same for all; step: the same, for each
    doubling on its own (a Wiener process over log2 k).
    """

    scale: float
    change: float
    trend: float
    step: float


#: Of a curve that was measured, at another moment, perhaps while the machine was busy; and of one
#: that was not.
MEASURED = Doubt(0.5, 0.5, 0.15, 0.1)
GUESSED = Doubt(5.0, 1.0, 0.2, 0.12)

#: How far the scale may move from one pass to the next, and the shape, as a share of its doubt.
SCALE_DRIFT, SHAPE_DRIFT = 0.02, 0.005

#: How much doubt is put back, as a share of the prior's, when what was kept is read again.
KEPT_DOUBT = 0.3

#: By how much passes of one kind differ, before any was seen, and at least.
NOISE, LEAST_NOISE = 0.1, 0.02

#: Passes that the running estimate of the noise remembers.
MEMORY = 40

#: Standard deviations beyond which a surprise counts no more than at this bound (Huber): something
#: else held the pass up.
BOUND = 2.0

#: Standard deviations by which a pass may well be cheaper than believed.
HOPE = 0.5

#: Plain passes and wider ones after which an assumed curve counts as known.
ENOUGH = 8

#: What passes take where nothing was measured: seconds that the first pass will correct, and for
#: each further row a twentieth of a one-token pass, which lies between what CPUs and GPUs show.
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48)
ASSUMED = PassCosts(
    WIDTHS, tuple(0.02 * (1 + (k - 1) / 20) for k in WIDTHS), width_change=1e-3, assumed=True
)


@dataclass(frozen=True, slots=True)
class Correction:
    """What was learnt of a prior, to be kept with it: the filter's mean and covariance."""

    mean: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]

    def fits(self, prior: PassCosts) -> bool:
        """Whether it is one of such a prior, and of finite numbers."""
        size, rows = SHAPE + len(prior.widths) - 1, self.covariance
        square = len(self.mean) == len(rows) == size and all(len(row) == size for row in rows)
        return square and bool(np.isfinite([*self.mean, *(v for row in rows for v in row)]).all())


class LearntCosts:
    """Mutable: `observe` changes `now` and `hoped`, which are values. One for each loaded engine;
    all columns on it tell it of their passes in the order in which they ran.
    """

    def __init__(self, prior: PassCosts, kept: Correction | None = None) -> None:
        """`kept` is what was learnt of this very prior before. Raises ValueError if it does not
        fit, or if the prior has one width alone.
        """
        if len(prior.widths) < 2 or (kept is not None and not kept.fits(prior)):
            raise ValueError("costs are learnt from a curve, and a correction of that curve")
        self.prior = prior
        self._doubt = _covariance(prior)
        self._mean = np.zeros(len(self._doubt))
        self._cov = self._doubt.copy()
        self._noise = NOISE
        self._last_rows = 0  # of the pass before, whichever column ran it
        self._plain = self._wide = 0  # passes seen
        if kept is not None:
            self._mean += kept.mean
            self._cov = np.asarray(kept.covariance) + KEPT_DOUBT**2 * self._doubt
            self._cov[SCALE], self._cov[:, SCALE] = self._doubt[SCALE], self._doubt[:, SCALE]
        self._drift = SHAPE_DRIFT**2 * self._doubt  # what a pass's time adds to the covariance
        self._drift[SCALE, SCALE] = SCALE_DRIFT**2
        self.now, self.hoped = self._curves()

    @property
    def passes(self) -> int:
        """How many were observed."""
        return self._plain + self._wide

    @property
    def correction(self) -> Correction:
        """What is known beside the prior."""
        rows = tuple(tuple(row) for row in self._cov.tolist())
        return Correction(tuple(self._mean.tolist()), rows)

    def observe(self, rows: int, context: int, seconds: float) -> None:
        """Learn what a pass took, over so many rows behind so many tokens."""
        changed, self._last_rows = rows != self._last_rows, rows
        if seconds <= 0:
            return  # a clock too coarse to tell
        self._cov += self._drift
        expected, slope = self._expected(rows, context, changed=changed)
        surprise = log(seconds / expected)
        spread = self._cov @ slope
        doubt = float(slope @ spread)
        noise = self._noise**2
        bound = BOUND * sqrt(doubt + noise)
        noise *= max(1.0, abs(surprise) / bound)
        self._mean += spread * (surprise / (doubt + noise))
        self._cov -= np.outer(spread, spread) / (doubt + noise)
        # 0.8 is the mean size of a normal deviate.
        size = min(abs(surprise), 3 * self._noise) / 0.8
        self._noise = max(LEAST_NOISE, self._noise + (size - self._noise) / MEMORY)
        self._plain, self._wide = self._plain + (rows == 1), self._wide + (rows > 1)
        self.now, self.hoped = self._curves()

    def observe_prompt(self, rows: int) -> None:
        """Learn that the latest pass, which read a prompt, was so wide."""
        self._last_rows = rows

    def _expected(self, rows: int, context: int, *, changed: bool) -> tuple[float, Floats]:
        """Seconds of such a pass, and how their logarithm goes with each part of the state."""
        now = self.now
        change = now.width_change if changed else 0.0
        total = now(rows, context) + change
        slope = np.zeros(len(self._mean))
        slope[SCALE], slope[CHANGE] = 1.0, change / total
        index, share = now.between(rows)
        for at, weight in ((index, 1 - share), (index + 1, share)):
            if at:  # the shape is 0 at one row
                slope[SHAPE + at - 1] = weight * now.seconds[at] / total
        return total, slope

    def _curves(self) -> tuple[PassCosts, PassCosts]:
        """What passes are believed to cost, and what they may cost at best."""
        scale, shape = self._mean[SCALE], np.concatenate(([0.0], self._mean[SHAPE:]))
        seconds = np.asarray(self.prior.seconds) * np.exp(scale + shape)
        faster = float(np.exp(scale))
        each, row = self.prior.context_slope
        change = self.prior.width_change * faster * float(np.exp(self._mean[CHANGE]))
        assumed = self.prior.assumed and min(self._plain, self._wide) < ENOUGH

        def curve(seconds: Floats) -> PassCosts:
            # A wider pass is never cheaper.
            rising = tuple(np.maximum.accumulate(seconds).tolist())
            slope = (each * faster, row * faster)
            return PassCosts(self.prior.widths, rising, change, slope, assumed)

        return curve(seconds), curve(seconds * np.exp(-HOPE * self._deviations()))

    def _deviations(self) -> Floats:
        """Of the logarithm of T(k) at each width: of scale and shape together."""
        shape, both = np.diag(self._cov)[SHAPE:], self._cov[SCALE, SHAPE:]
        variances = self._cov[SCALE, SCALE] + np.concatenate(([0.0], shape + 2 * both))
        return np.sqrt(np.maximum(variances, 0.0))


def _covariance(prior: PassCosts) -> Floats:
    """Of the state, before any pass was seen."""
    doubt = GUESSED if prior.assumed else MEASURED
    doublings = np.log2(prior.widths[1:])
    covariance = np.zeros((SHAPE + len(doublings),) * 2)
    covariance[SCALE, SCALE], covariance[CHANGE, CHANGE] = doubt.scale**2, doubt.change**2
    covariance[SHAPE:, SHAPE:] = doubt.trend**2 * np.outer(doublings, doublings)
    covariance[SHAPE:, SHAPE:] += doubt.step**2 * np.minimum.outer(doublings, doublings)
    return covariance
