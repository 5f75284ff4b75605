"""Which drafted tokens are committed: one walk down the tree, by either of two rules.

The keyed rule commits what the target itself would have written, token for token. The other one
is speculative sampling (arXiv 2211.17192, 2302.01318), which keeps the target's distribution but
not its text, and accepts more: 1 - TV of a draft's first guesses instead of (1 - TV) / (1 + TV),
with TV the total variation distance of the two distributions. No rule can do both: a text that
does not depend on the draft cannot be agreed with more often (arXiv 2408.07978).
"""

from collections.abc import Callable
from math import inf, nan

import numpy as np
from numpy.typing import NDArray

from backend.decoding.sampling import (
    COLDEST,
    VERIFYING,
    Choice,
    Sampler,
    draw_from,
    numbers,
    probabilities,
)
from backend.types import Draw, Logits, Outcome, Proposal


class Verifier:
    """The keyed rule, unless it is another: a drafted token is accepted where the target's own
    sample with the position's noise equals it.
    """

    def verify(
        self,
        proposal: Proposal,
        logits: Logits,
        allowed: NDArray[np.bool_],
        position: int,
        sampler: Sampler,
    ) -> Outcome:
        """Decide on float32 logits [1 + verified + feedback, V], the first of the root and the
        verified tokens.

        `allowed`: what may be chosen there, bool [1 + verified, V]; no rows: everything. `position`
        is that of the first token to decide, `sampler` the request's own.
        """

        def sample(row: int, depth: int) -> Choice:
            mask = allowed[row] if allowed.size else None
            return sampler.choose(logits[row], position + depth, mask)

        return verify(proposal, logits, position, sample)


KEYED = Verifier()


class DistributionVerifier(Verifier):
    """Accepts by rejection sampling, at temperature 0 what the keyed rule accepts.

    A token x that the draft drew with probability q(x) passes with probability min(1, p(x) / q(x));
    where it does not, the token is drawn from the residual max(0, p - q), scaled to 1. What was not
    drawn was certain to be proposed, and passes if it is what is drawn from p.

    That is exact only if a drawn token is tried whichever it is; hence `Proposal.draws`, which
    also holds those that a constraint cut off.
    """

    def __init__(self) -> None:
        self._rounds = 0  # so that no two rounds draw the same numbers

    def verify(
        self,
        proposal: Proposal,
        logits: Logits,
        allowed: NDArray[np.bool_],
        position: int,
        sampler: Sampler,
    ) -> Outcome:
        """See Verifier."""
        sampling = sampler.sampling
        if sampling.temperature < COLDEST:
            return KEYED.verify(proposal, logits, allowed, position, sampler)
        self._rounds += 1
        drawn = numbers(sampling.seed, position, VERIFYING, self._rounds)
        path: list[int] = []

        def sample(row: int, depth: int) -> Choice:
            scores = logits[row]
            if allowed.size:
                scores = np.where(allowed[row], scores, np.float32(-inf))
            if np.isnan(scores.max()):
                return Choice(0, nan)
            target = probabilities(scores, sampling)
            draw = proposal.draws.get(tuple(path))
            if draw is None:
                path.append(draw_from(target, drawn.random()))
            else:
                path.append(_examine(target, draw, drawn))
            return Choice(path[-1], inf)

        return verify(proposal, logits, position, sample)


def _examine(target: NDArray[np.float32], draw: Draw, drawn: np.random.Generator) -> int:
    """The token to commit where `draw` is proposed and p is `target`, float32 [V]. A token that
    only rounding rejects, since no residual remains, passes.
    """
    if drawn.random() * draw.probabilities[draw.token] < target[draw.token]:
        return draw.token
    residual = target.copy()
    residual[: draw.probabilities.size] -= draw.probabilities
    np.maximum(residual, 0, out=residual)
    return draw_from(residual, drawn.random()) if residual.any() else draw.token


def verify(
    proposal: Proposal, logits: Logits, position: int, sample: Callable[[int, int], Choice]
) -> Outcome:
    """Accept proposed tokens while the sample equals one of them.

    `sample(row, depth)` samples behind row 0 (the root) or i + 1 (verified token i), for the
    position `depth` after the root's next. The first sample that no child carries is the bonus.
    """
    children: dict[tuple[int, int], int] = {}
    for i in range(proposal.verified):
        children.setdefault((proposal.parents[i], proposal.tokens[i]), i)
    path, tokens, gaps = list[int](), list[int](), list[float]()
    node: int | None = -1
    while node is not None:
        choice = sample(node + 1, len(path))
        tokens.append(choice.token)
        gaps.append(choice.gap)
        node = children.get((node, choice.token))
        if node is not None:
            path.append(node)
    return Outcome(tuple(tokens), tuple(path), proposal, logits, tuple(gaps), position)
