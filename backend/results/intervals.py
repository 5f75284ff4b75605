"""How sure a ratio of speeds is: 95 % intervals by resampling what was measured.

Columns of a race take turns, so at equal readings of their own clocks the machine was in the same
state for both of them. The time in which both ran is cut into slices, and slices are drawn with
both columns' share of each (a block bootstrap of pairs: Künsch, Annals of Statistics 17, 1989).
What one of them did before or after says nothing, because the machine may have been another by
then. The interval is of this text: how often drafts were right in it is no chance of the machine's.
The bench, whose columns run alone, draws prompts, and so tells of others.

Few pieces are little to draw from: the bootstrap gives the standard error of the ratio's
logarithm, and Student's t for so many pieces says how many of those the interval reaches
(Hesterberg, The American Statistician 69, 2015).
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, hypot, inf, log, sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Share of all races whose interval holds the truth.
CONFIDENCE = 0.95

#: How many standard errors that is, where these are known.
NORMAL = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)

#: Fewer pieces say nothing of how much they differ.
LEAST = 4

#: Slices of a race at most, and the seconds of the shortest: each must hold several turns of both,
#: and most disturbances whole. In simulated races with rare hiccups of 0.1 s, 64 slices held the
#: truth in 87 of 100 cases, 20 in 95.
MOST_SLICES, SLICE = 20, 0.24

#: Seconds of the shortest slice where there are only LEAST of them. In simulated races of 24 to 48
#: tokens such intervals held the truth in 95 of 100 cases, on a busy machine in 97.
SHORTEST = 0.08

#: Passes of either column that a slice must hold on average.
PASSES = 2

#: By how much two columns of a race that do the same differ throughout, as the standard deviation
#: of the ratio's logarithm: their caches lie in other places of the memory, as no slice can show.
#: Without it the intervals of 80 races of KV reuse against itself held 1 in 74 of 100 cases.
PLACE = 0.007

#: By how much the price of a wide pass over that of a narrow one differs from minute to minute, as
#: the standard deviation of the ratio's logarithm, for each unit of that price's own logarithm:
#: what neighbours do to the memory changes it, as no slice of one race can show. Without it the
#: intervals of races of columns at 1.2 to 1.5 times the price held what ten repeats show in 65 to
#: 78 of 100 cases (`experiments coverage`).
WIDE = 0.1

#: By how much runs of a column that runs alone differ, as the standard deviation of the rate's
#: logarithm, and for how many degrees of freedom that counts beside those of the runs at hand.
BETWEEN_RUNS, FREEDOM = 0.03, 4

#: Times that is drawn anew: the standard error is right to 4 %.
DRAWS = 400


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as much, 0 while unknown, between `low` and `high` in 95 of 100 cases: 0 and
    infinite where it is not known how sure it is.
    """

    value: float = 0.0
    low: float = 0.0
    high: float = inf

    @property
    def known(self) -> bool:
        """True if there is an interval."""
        return self.high < inf

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends, None if they are not known."""
        return (self.low, self.high) if self.known else None

    @property
    def above(self) -> bool:
        """True if it is shown to be more than 1, as the interval is written."""
        return round(self.low, 2) > 1

    @property
    def below(self) -> bool:
        """True if it is shown to be less than 1, as the interval is written."""
        return self.value > 0 and self.known and round(self.high, 2) < 1


UNKNOWN = Ratio()


class Commit(NamedTuple):
    """A step that committed tokens: when on the clock, in seconds, how many, and what was computed
    for them: rows of the target, passes of the draft, and passes of the target behind the first
    step's (0: not known, or none).
    """

    clock: float
    tokens: int
    rows: int = 1
    calls: int = 0
    passes: int = 0


def median_ratio(values: Sequence[float], of: Sequence[Hashable] = ()) -> Ratio:
    """The median over prompts of ratios, all above 0, measured once or more on each prompt. `of`
    names each value's prompt; (): each is of its own. Drawn anew are prompts, and of each of them
    repeats: repeats alone make nobody surer of other prompts.
    """
    groups: dict[Hashable, list[float]] = {}
    for value, prompt in zip(values, of or range(len(values)), strict=True):
        groups.setdefault(prompt, []).append(value)
    pieces = len(groups)
    if not pieces:
        return UNKNOWN
    value = float(np.median([np.median(group) for group in groups.values()]))
    if pieces < LEAST:
        return Ratio(value)
    rng = np.random.default_rng(pieces)
    picks = rng.integers(pieces, size=(DRAWS, pieces))
    sizes = np.array([len(group) for group in groups.values()])
    repeats = int(sizes.max())
    logarithms = np.log([np.resize(group, repeats) for group in groups.values()])
    chosen = (rng.random((DRAWS, pieces, repeats)) * sizes[picks][..., None]).astype(int)
    drawn = np.median(np.take_along_axis(logarithms[picks], chosen, axis=2), axis=2)
    return _around(value, np.median(drawn, axis=1), pieces)


def at(commits: Sequence[Commit], moment: float) -> tuple[float, float]:
    """What a column had written at `moment` of its clock, and in how many passes; a step that was
    under way counts by its share.
    """
    if not commits:
        return 0.0, 0.0
    clock, tokens, _, _, passes = np.asarray(commits, float).T
    amount, done = (np.interp(moment, clock, np.cumsum(each)) for each in (tokens, passes))
    return float(amount), float(done)


def paired(ours: Sequence[Commit], theirs: Sequence[Commit], moment: float) -> Ratio:
    """How many times as many tokens the first of two columns had at `moment` as the second, in
    seconds of either one's own clock since its first commit, which both have reached; UNKNOWN if
    either had none.
    """
    amounts = [at(commits, moment)[0] for commits in (ours, theirs)]
    if not all(amounts):
        return UNKNOWN
    value, passes = amounts[0] / amounts[1], [_passes(each, moment) for each in (ours, theirs)]
    slices = max(moment / SLICE, min(moment / SHORTEST, LEAST))
    count = int(min(slices, min(passes) / PASSES, MOST_SLICES))
    if count < LEAST:
        return Ratio(value)
    edges = np.linspace(0, moment, count + 1)
    our_work, their_work = (  # of the slices drawn, [DRAWS]
        _drawn(count) @ np.diff(np.interp(edges, *_work(commits))) for commits in (ours, theirs)
    )
    return _around(value, np.log(our_work / their_work), count, _unseen(passes))


def rate(runs: Sequence[Sequence[Commit]], moment: float) -> float:
    """What the runs of a column wrote in a second up to `moment`, or up to their own ends: the
    geometric mean; 0: one of them wrote nothing.
    """
    rates = _rates(runs, moment)
    return exp(float(np.log(rates).mean())) if rates.all() else 0.0


def _rates(runs: Sequence[Sequence[Commit]], moment: float) -> Floats:
    """Tokens a second of each run, [runs]."""
    ends = [(run, min(moment, run[-1].clock)) for run in runs]
    return np.asarray([at(run, end)[0] / end if end else 0.0 for run, end in ends])


def unpaired(
    ours: Sequence[Sequence[Commit]], theirs: Sequence[Sequence[Commit]], moment: float
) -> Ratio:
    """How many times as fast the first of two columns is that did not take turns, from the runs of
    both. Few runs say little of how much runs differ, so what is known of that beforehand counts
    with them: the moderated t of Smyth (Statistical Applications in Genetics 3, 2004). Without an
    interval where each ran once.
    """
    rates = [_rates(runs, moment) for runs in (ours, theirs)]
    if not all(each.all() for each in rates):
        return UNKNOWN
    logarithms = [np.log(each) for each in rates]
    value = exp(float(logarithms[0].mean() - logarithms[1].mean()))
    freedom = len(ours) + len(theirs) - 2
    if not freedom:
        return Ratio(value)
    squares = sum(float(each.var()) * len(each) for each in logarithms)
    variance = (FREEDOM * BETWEEN_RUNS**2 + squares) / (FREEDOM + freedom)
    error = sqrt(variance * (1 / len(ours) + 1 / len(theirs)))
    unseen = _unseen([_passes(runs[0], moment) for runs in (ours, theirs)])
    reach = hypot(_student(FREEDOM + freedom) * error, NORMAL * unseen)
    return Ratio(value, value * exp(-reach), value * exp(reach))


def _passes(commits: Sequence[Commit], moment: float) -> int:
    """Steps behind the first one, up to a moment."""
    return sum(0 < commit.clock <= moment for commit in commits)


def _unseen(passes: Sequence[int]) -> float:
    """The standard error of the ratio's logarithm that no piece of one race shows, of two columns
    that made so many passes in the same time.
    """
    ours, theirs = passes
    return hypot(PLACE, WIDE * log(theirs / ours)) if ours and theirs else PLACE


def _work(commits: Sequence[Commit]) -> tuple[Floats, Floats]:
    """Of each step the time of its commit, and the work done by then, in seconds that steps of so
    many rows and draft passes usually take in this column, by least squares.

    What a step yields is the text's doing, what its rows cost is the strategy's: neither is noise.
    """
    clock, _, rows, calls, _ = np.asarray(commits, float).T
    seconds, causes = np.diff(clock), np.stack((np.ones_like(rows), rows, calls), axis=1)[1:]
    factors, *_ = np.linalg.lstsq(causes, seconds, rcond=None)
    usual = np.maximum(causes @ factors, seconds.mean() / 4)
    return clock, np.concatenate(([0.0], np.cumsum(usual)))


def _around(value: float, logarithms: Floats, pieces: int, beside: float = 0.0) -> Ratio:
    """`beside` is a standard error that the pieces do not show, and that is known."""
    error = float(logarithms.std()) * sqrt(pieces / (pieces - 1))
    reach = hypot(_student(pieces - 1) * error, NORMAL * beside)
    return Ratio(value, value * exp(-reach), value * exp(reach))


@lru_cache(maxsize=MOST_SLICES)
def _drawn(pieces: int) -> Floats:
    """How often each piece is drawn, [DRAWS, pieces]; the same every time, so that a figure does
    not tremble.
    """
    rng = np.random.default_rng(pieces)
    return rng.multinomial(pieces, [1 / pieces] * pieces, size=DRAWS).astype(float)


@lru_cache
def _student(freedom: int) -> float:
    """The quantile of Student's t at CONFIDENCE, both sides."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
