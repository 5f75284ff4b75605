"""Choosing tokens: temperature, top-k, top-p, keyed noise, and the one rule of verification.

Randomness is keyed by (seed, absolute position): by the Gumbel-max trick, argmax(logits / T + g)
with Gumbel noise g is a draw from softmax(logits / T), and g is the same for every column at that
position. Whoever gets the same logits writes the same token; a draft that uses the same noise
agrees with the target with probability (1 - TV) / (1 + TV) or better (arXiv 2408.07978).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from backend.types import Logits, Proposal, Sampling

#: Below this temperature noise could only break ties, and dividing by it would overflow: greedy.
COLDEST = 1e-6


class Choice(NamedTuple):
    """A chosen token and how far its score lay above the runner-up's (inf if it had none)."""

    token: int
    gap: float


class Pair(NamedTuple):
    """A chosen token, how far its score lay above the runner-up's, and the runner-up."""

    token: int
    gap: float
    second: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """`rows`: indices of the accepted drafted tokens, a path from the root. `choices`: one for each
    of them and one more, the bonus token sampled after the last.
    """

    rows: tuple[int, ...]
    choices: tuple[Choice, ...]


def noise(seed: int, position: int, size: int) -> NDArray[np.float64]:
    """Gumbel noise of tokens 0..size-1 at one position: float64 [size]."""
    bits = np.random.Philox(key=np.array([seed, position], dtype=np.uint64))
    return -np.log(np.random.Generator(bits).standard_exponential(size))


def noised(scores: Logits, sampling: Sampling, gumbel: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores whose largest is a draw from float32 logits [V] (-inf: ruled out) at temperature > 0,
    with noise float64 [V].
    """
    return truncate(scores, sampling) / np.float64(sampling.temperature) + gumbel


def truncate(scores: Logits, sampling: Sampling) -> Logits:
    """The scores [V] with -inf where top-k, and then top-p, rule a token out.

    Ties at the k-th score all stay. top-p keeps the fewest most probable tokens whose probability
    reaches p, ties by id.
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
        kept = order[sums - weights[order] < sampling.top_p * total]
        limited = np.full_like(scores, -np.inf)
        limited[kept] = scores[kept]
        return limited
    return scores


class Sampler:
    """One column's sampling; remembers the noise of recent positions, for draft and target share
    it. Never shared between columns: one would pay for the other's noise.
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
        return _top(self._noised(scores, position))

    def choose_two(
        self, logits: Logits, position: int, among: NDArray[np.int64] | None = None, size: int = 0
    ) -> Pair:
        """The token that `choose` takes, and the one that it would take without it.

        With `among`, logits [len(among)] are those of these tokens of `size` ones; what is given
        back are indices into it.
        """
        scores = self._noised(logits, position, among, size)
        best, gap = _top(scores)
        below, above = scores[:best], scores[best + 1 :]
        low = int(below.argmax()) if below.size else -1
        high = best + 1 + int(above.argmax()) if above.size else -1
        second = low if high < 0 or (low >= 0 and scores[low] >= scores[high]) else high
        return Pair(best, gap, second)

    def _noised(
        self,
        scores: Logits,
        position: int,
        among: NDArray[np.int64] | None = None,
        size: int = 0,
    ) -> NDArray[np.floating]:
        if self.sampling.temperature < COLDEST:
            return scores
        gumbel = self._noise(self.sampling.seed, position, size or scores.size)
        return noised(scores, self.sampling, gumbel if among is None else gumbel[among])


def _top(scores: NDArray[np.floating]) -> Choice:
    """The largest score's index and its distance to the second largest."""
    best = int(scores.argmax())
    rest = max(
        scores[:best].max(initial=-np.inf),
        scores[best + 1 :].max(initial=-np.inf),
    )
    return Choice(best, float(scores[best] - rest))


def verify(proposal: Proposal, sample: Callable[[int, int], Choice]) -> Verdict:
    """Accept drafted tokens while the target's own sample equals one of them.

    `sample(row, depth)` samples the logits of row 0 (the root) or i + 1 (drafted token i), for the
    position `depth` after the root's next. The first sample that no child carries is the bonus.
    """
    children: dict[tuple[int, int], int] = {}
    for i in range(proposal.drafted):
        children.setdefault((proposal.parents[i], proposal.tokens[i]), i)
    rows: list[int] = []
    choices: list[Choice] = []
    node = -1
    while True:
        choice = sample(node + 1, len(rows))
        choices.append(choice)
        child = children.get((node, choice.token))
        if child is None:
            return Verdict(tuple(rows), tuple(choices))
        rows.append(child)
        node = child
