"""Choosing tokens, and where the randomness comes from. As in transformers, the repetition penalty
comes first, also at temperature 0; then, above it, temperature, top-k, top-p and min-p.

The usual one is keyed by (seed, absolute position): by the Gumbel-max trick, argmax(logits / T + g)
with Gumbel noise g is a draw from softmax(logits / T), and g is the same for every column at that
position. Whoever gets the same logits writes the same token; a draft that uses the same noise
agrees with the target with probability (1 - TV) / (1 + TV) or better (arXiv 2408.07978).

Where a column promises the distribution alone, draft and verdict draw numbers of their own, keyed
by (seed, position, purpose, serial number): none is used twice.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from backend.types import Draw, Logits, Sampling

#: Below this temperature noise could only break ties, and dividing by it would overflow: greedy.
COLDEST = 1e-6

#: What numbers are drawn for; keyed noise is the purpose 0.
DRAFTING, VERIFYING = 1, 2


class Choice(NamedTuple):
    """A chosen token, how far its score lay above the runner-up's (inf if it had none), and the
    runner-up (-1: none).

    `draw` says how it was drawn if that was with numbers that nobody shares; there is no runner-up
    then, and the gap is the log odds of the most probable token, whichever was drawn.
    """

    token: int
    gap: float
    second: int = -1
    draw: Draw | None = None


def noise(seed: int, position: int, size: int) -> NDArray[np.float32]:
    """Gumbel noise of tokens 0..size-1 at one position: float32 [size]."""
    bits = np.random.Philox(key=np.array([seed, position], dtype=np.uint64))
    return gumbel(bits.random_raw((size + 1) // 2).view(np.uint32)[:size])


def gumbel(bits: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Gumbel noise, float32 [n], of 32 random bits each.

    -log(-log(1 - u)) of a uniform u > 0: the largest noise comes of the smallest u, of which
    float32 has all, so it reaches 22.9 in steps as fine as the numbers are rare. Of u near 1, where
    it has few, comes the smallest noise, which wins nothing: that ends at -2.8. All is finite.
    """
    noise = bits.astype(np.float32)
    noise += 0.5
    noise *= -(2**-32)  # -u; in place, as fresh memory costs more than arithmetic
    np.maximum(noise, 2**-24 - 1, out=noise)
    np.log1p(noise, out=noise)
    np.negative(noise, out=noise)
    np.log(noise, out=noise)
    return np.negative(noise, out=noise)


def numbers(seed: int, position: int, purpose: int, serial: int) -> np.random.Generator:
    """Uniform numbers for one purpose at one position, others for each serial number."""
    counter = np.array([0, 0, serial, purpose], dtype=np.uint64)
    key = np.array([seed, position], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def penalize(scores: Logits, seen: Sequence[int] | NDArray[np.int64], penalty: float) -> None:
    """Make the tokens that a text has `seen` less likely (arXiv 1909.05858), in place: their scores
    [V] are divided by the penalty, negative ones multiplied.
    """
    ids = np.asarray(seen, dtype=np.int64)
    ids = ids[ids < scores.size]
    before = scores[ids]
    scores[ids] = np.where(before < 0, before * penalty, before / penalty)


def probabilities(scores: Logits, sampling: Sampling) -> NDArray[np.float32]:
    """What tokens are drawn from, float32 [V], given logits [V] (-inf: ruled out) at a temperature
    of COLDEST at least.
    """
    scores = truncate(scores, sampling)
    weights = np.exp((scores - scores.max()) / np.float32(sampling.temperature))
    weights /= np.float32(weights.sum(dtype=np.float64))
    return weights


def truncate(scores: Logits, sampling: Sampling) -> Logits:
    """The scores [V] with -inf where top-k, top-p or min-p, one after the other, rule a token out.

    Ties at the k-th score all stay. top-p keeps the fewest most probable tokens whose probability
    reaches p, ties by id; min-p those with at least this share of the greatest probability.
    """
    if 0 < sampling.top_k < scores.size:
        threshold = np.partition(scores, -sampling.top_k)[-sampling.top_k]
        scores = np.where(scores >= threshold, scores, np.float32(-np.inf))
    if sampling.top_p < 1:
        weights = np.exp((scores - scores.max()) / np.float32(sampling.temperature))
        total = weights.sum(dtype=np.float64)
        # All tokens below this weight together weigh less than 1 - p, so none of them is needed:
        # a handful is left to sort instead of the whole vocabulary.
        heavy = np.flatnonzero(weights > (1 - sampling.top_p) * total / weights.size)
        order = heavy[np.argsort(-weights[heavy], kind="stable")]
        sums = np.cumsum(weights[order], dtype=np.float64)
        nucleus = order[sums - weights[order] < sampling.top_p * total]
        limited = np.full_like(scores, -np.inf)
        limited[nucleus] = scores[nucleus]
        scores = limited
    if sampling.min_p > 0:
        odds = (scores - scores.max()) / np.float32(sampling.temperature)
        scores = np.where(odds >= log(sampling.min_p), scores, np.float32(-np.inf))
    return scores


class Sampler:
    """One column's sampling; remembers the noise of recent positions, because draft and target
    share it. Never shared between columns: one would pay for the other's noise.
    """

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self._noise = lru_cache(maxsize=32)(noise)

    def choose(
        self, logits: Logits, position: int, mask: NDArray[np.bool_] | None = None
    ) -> Choice:
        """Choose the token at `position` (the prompt's first is 0) from float32 logits [V].

        `mask`, bool [V], says what is allowed; at least one token must be.
        """
        scores = logits if mask is None else np.where(mask, logits, np.float32(-np.inf))
        if self.sampling.temperature >= COLDEST:
            scores = truncate(scores, self.sampling) / np.float32(self.sampling.temperature)
            scores += self._noise(self.sampling.seed, position, scores.size)
        best = int(scores.argmax())
        parts = ((0, scores[:best]), (best + 1, scores[best + 1 :]))
        others = [start + int(part.argmax()) for start, part in parts if part.size]
        second = max(others, key=scores.__getitem__, default=-1)
        return Choice(best, float(scores[best] - (scores[second] if others else -np.inf)), second)


class IndependentSampler(Sampler):
    """Draws a draft's tokens with numbers that the target does not share, as rejection sampling
    wants them. Counts its draws, so that no two of them are alike; never shared between columns.
    """

    def __init__(self, sampling: Sampling) -> None:
        """The temperature must be COLDEST at least."""
        super().__init__(sampling)
        self._draws = 0

    def choose(
        self, logits: Logits, position: int, mask: NDArray[np.bool_] | None = None
    ) -> Choice:
        """See Sampler; a draft has no mask, and there is no runner-up."""
        self._draws += 1
        drawn = numbers(self.sampling.seed, position, DRAFTING, self._draws)
        chances = probabilities(logits, self.sampling)
        token, largest = draw_from(chances, drawn.random()), float(chances.max())
        odds = largest / max(1 - largest, 1e-9)
        return Choice(token, log(odds), draw=Draw(token, chances))


def draw_from(weights: NDArray[np.floating], number: float) -> int:
    """The index that a uniform number in [0, 1) stands for; weights [V] need not add up to 1."""
    sums = np.cumsum(weights, dtype=np.float64)
    last = int(np.searchsorted(sums, sums[-1]))  # where rounding takes the place to the very end
    return min(int(np.searchsorted(sums, number * sums[-1], side="right")), last)
