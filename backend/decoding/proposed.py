"""The event that shows a step's proposal and what came of it. Made off every clock."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.decoding.clock import rounded_value
from backend.decoding.sampling import COLDEST
from backend.events import Proposed
from backend.types import Outcome, Proposal, Request, chain_parents


def proposed(
    column: int,
    offered: Proposal,
    outcome: Outcome,
    allowed: NDArray[np.bool_],
    request: Request,
    piece: Callable[[int], str],
) -> Proposed:
    """The pass in plain values: a constraint cut `offered` to what was verified and `allowed` no
    other tokens, bool as `Verifier.verify` reads it; `piece` gives a token's text.
    """
    proposal, verified = outcome.proposal, outcome.proposal.verified
    tokens, parents = proposal.tokens[:verified], proposal.parents[:verified]
    cut = _cut(offered, tokens)
    names = [*proposal.proposers[:verified], *(offered.proposers[i] for i in cut)]
    return Proposed(
        column,
        [piece(token) for token in (*tokens, *(offered.tokens[i] for i in cut))],
        [] if parents == chain_parents(verified) else list(parents),
        [[name, len(list(run))] for name, run in groupby(names)],
        list(outcome.path),
        piece(outcome.tokens[-1]) if len(outcome.tokens) > len(outcome.path) else "",
        len(cut),
        proposal.scratch,
        [int(np.count_nonzero(row)) for row in allowed],
        _top(outcome, request, piece) if request.top else [],
    )


def _cut(offered: Proposal, verified: Sequence[int]) -> list[int]:
    """Indices of the tokens that were offered and not verified; the others are in order."""
    cut: list[int] = []
    for i, token in enumerate(offered.tokens[: offered.verified]):
        if i - len(cut) >= len(verified) or verified[i - len(cut)] != token:
            cut.append(i)
    return cut


def _top(outcome: Outcome, request: Request, piece: Callable[[int], str]) -> list[list[list[Any]]]:
    """The model's most probable tokens in the place of each committed one, under the request's
    repetition penalty and temperature (at 0, as at 1), before a constraint, top-k, top-p and min-p
    rule any out.
    """
    temperature, most = request.sampling.temperature, min(request.top, outcome.logits.shape[1])
    top: list[list[list[Any]]] = []
    for token, row in zip(outcome.tokens, (0, *(1 + i for i in outcome.path)), strict=False):
        scores = outcome.logits[row]
        heated = scores / np.float32(temperature if temperature >= COLDEST else 1)
        weights = np.exp(heated - heated.max())
        total = weights.sum(dtype=np.float64)
        among = {token, *np.argpartition(scores, -most)[-most:].tolist()}
        best = sorted(among, key=lambda i: (-scores[i], i != token))
        listed = [i for n, i in enumerate(best) if i == token or n < most]
        top.append([[piece(i), rounded_value(float(weights[i] / total))] for i in listed])
    return top
