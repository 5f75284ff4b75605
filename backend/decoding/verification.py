"""Which drafted tokens are committed: one walk down the tree, by either of two rules.

The keyed rule commits what the target itself would have written, token for token. The other one
is speculative sampling (arXiv 2211.17192, 2302.01318), which keeps the target's distribution but
not its text, and accepts more: 1 - TV of a draft's first guesses instead of (1 - TV) / (1 + TV),
with TV the total variation distance of the two distributions. No rule can do both: a text that
does not depend on the draft cannot be agreed with more often (arXiv 2408.07978).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

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
from backend.types import Draw, Logits, Proposal


@dataclass(frozen=True, slots=True)
class Verdict:
    """`rows`: indices of the accepted drafted tokens, a path from the root. `choices`: one for each
    of them and one more, the bonus token sampled after the last. `overlaps`: of each row that was
    looked at, and behind which a draft had drawn tokens, 1 - TV; what computes none leaves it out.
    """

    rows: tuple[int, ...]
    choices: tuple[Choice, ...]
    overlaps: tuple[float, ...] = ()


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
    ) -> Verdict:
        """Decide on float32 logits [1 + drafted, V] of the root and the drafted tokens.

        `allowed`: what may be chosen there, bool of the same shape; no rows: everything. `position`
        is that of the first token to decide, `sampler` the request's own.
        """

        def sample(row: int, depth: int) -> Choice:
            mask = allowed[row] if allowed.size else None
            return sampler.choose(logits[row], position + depth, mask)

        return verify(proposal, sample)


KEYED = Verifier()


class DistributionVerifier(Verifier):
    """Accepts by rejection sampling, at temperature 0 what the keyed rule accepts.

    Siblings are tried one after another (recursive rejection: SpecInfer, arXiv 2305.09781; without
    replacement: arXiv 2402.14160). A drawn token x passes with probability min(1, p(x) / q(x));
    where it does not, p becomes the residual max(0, p - q) and q loses x, both scaled to 1. What
    was not drawn was certain to be proposed: q(x) = 1. If none passes, the token is drawn from what
    p has become.

    That is exact only if whether a drawn token is tried does not depend on which one it is; hence
    `Proposal.draws`, which tells of those too that a constraint has cut off.
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
    ) -> Verdict:
        """See Verifier."""
        sampling = sampler.sampling
        if sampling.temperature < COLDEST:
            return KEYED.verify(proposal, logits, allowed, position, sampler)
        self._rounds += 1
        drawn = numbers(sampling.seed, position, VERIFYING, self._rounds)
        overlaps: list[float] = []
        path: list[int] = []

        def sample(row: int, depth: int) -> Choice:
            scores = logits[row]
            if allowed.size:
                scores = np.where(allowed[row], scores, np.float32(-inf))
            target = probabilities(scores, sampling)
            draw = proposal.draws.get(tuple(path))
            if draw is not None:
                overlaps.append(_overlap(target, draw))
            path.append(_examine(target, draw, _children_of(proposal, row - 1), drawn))
            return Choice(path[-1], inf)

        verdict = verify(proposal, sample)
        return Verdict(verdict.rows, verdict.choices, tuple(overlaps))


def _children_of(proposal: Proposal, node: int) -> list[int]:
    """The tokens proposed behind drafted token `node`, -1 for the root."""
    rows = range(proposal.drafted)
    return [proposal.tokens[i] for i in rows if proposal.parents[i] == node]


def _examine(
    target: NDArray[np.float32],
    draw: Draw | None,
    others: Sequence[int],
    drawn: np.random.Generator,
) -> int:
    """The token to commit where `draw`, and after it the tokens `others`, are proposed and p is
    `target`, float32 [V].

    One that rounding alone rejects, because nothing is left without it, passes.
    """
    total = 1.0
    if draw is not None:
        draft, mass = draw.probabilities.copy(), 1.0
        places = slice(draft.size) if draw.support is None else draw.support
        for index in draw.indices:
            token = draw.token(index)
            if drawn.random() * draft[index] / mass < target[token] / total:
                return token
            rest = target.copy()
            rest[places] -= np.float32(total / mass) * draft
            np.maximum(rest, 0, out=rest)
            draft[index] = 0
            target, total, mass = rest, _sum(rest), _sum(draft)
            if not total:
                return token
    for token in others:
        if drawn.random() < target[token] / total:
            return token
        target = target.copy()
        target[token] = 0
        total = _sum(target)
        if not total:
            return token
    return draw_from(target, drawn.random())


def _sum(weights: NDArray[np.float32]) -> float:
    return float(weights.sum(dtype=np.float64))


def _overlap(target: NDArray[np.float32], draw: Draw) -> float:
    """1 - TV of the target's distribution, float32 [V], and the draft's."""
    same = target[: draw.probabilities.size] if draw.support is None else target[draw.support]
    return _sum(np.minimum(same, draw.probabilities))


def verify(proposal: Proposal, sample: Callable[[int, int], Choice]) -> Verdict:
    """Accept drafted tokens while the sample equals one of them.

    `sample(row, depth)` samples behind row 0 (the root) or i + 1 (drafted token i), for the
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
