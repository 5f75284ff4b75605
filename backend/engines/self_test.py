"""What a loaded model can do, found by running it: nobody keeps a list of architectures.

Twelve tokens are computed one by one, and in passes with wrong guesses: behind the tokens, beside
them in a tree, and in front of them, where each token sees the guesses. What seeing them changes is
the measure of all errors, whatever the model and its arithmetic. Passes that are compared have as
many rows, so most of their rounding is the same.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from backend.engines.session import Session
from backend.types import Guesses, Logits, chain_parents

log = logging.getLogger(__name__)

TOKENS, BEGUN, WRONG = 12, 5, 10

#: A chain may be off from single tokens by this share of what seeing wrong guesses changes. It was
#: 1e-4 of it in float32 and 0.17 in 4 bits; a pass that forgets the context is off by about 1.
PRECISE, ROUNDED = 0.01, 0.4

#: By how much of that a row of a tree may go by guesses that it does not see. It was 0, and 0.2
#: where one row saw them, or where they stayed after they were rejected.
LEAK = 0.1

#: A tree may be off from a chain by this share of what the chain is off from single tokens, or of
#: what seeing the guesses changes. It was 0.5 of the one in 4 bits; wrong positions make 1.2 of the
#: one and 0.04 of the other where a model hardly goes by positions, and many times that elsewhere.
ROUNDING, CHANGE = 1.25, 0.005

#: Rounding may choose another expert, and one text in a dozen be off by more: others are tried.
TEXTS = 3


def self_test(
    open_session: Callable[[], Session],
    vocabulary: int,
    bound: float,
    open_plain: Callable[[], Session] | None = None,
) -> Guesses:
    """What a model's passes may check. `bound`: PRECISE or ROUNDED, as its arithmetic is.
    `open_plain`: what computes the single tokens, if not the same.
    """
    guesses: Guesses = "none"
    try:
        session, plain = open_session(), (open_plain or open_session)()
        for text in range(TEXTS):
            tokens = sample(vocabulary, TOKENS + 2 * WRONG, text)
            tokens, *wrong = tokens[:TOKENS], tokens[TOKENS:-WRONG], tokens[-WRONG:]
            single = in_passes(plain, tokens, [1] * TOKENS)[BEGUN:]
            if np.isnan(single).any():
                return "trees"  # of damaged weights, which whoever runs them says
            chain = _with_guesses(session, tokens, wrong[0], "behind")
            seeing = [_with_guesses(session, tokens, each, "in front") for each in wrong]
            if not distance(chain, single) < bound * distance(seeing[0], single):
                break
            guesses = "chains"
            trees = [_with_guesses(session, tokens, each, "beside") for each in wrong]
            leak, change = (np.linalg.norm(a - b, axis=1) for a, b in (trees, seeing))
            rounding = ROUNDING * distance(chain, single)
            seen = CHANGE * distance(seeing[0], chain)
            if (leak <= LEAK * change).all() and distance(trees[0], chain) <= max(rounding, seen):
                guesses = "trees"
                break
        session.close()
        plain.close()
    except Exception as error:  # whatever the code of others raises with our caches
        if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__:
            raise
        log.info("the self-test ended at %s", guesses, exc_info=True)
    return guesses


def _with_guesses(
    session: Session,
    tokens: Sequence[int],
    wrong: Sequence[int],
    place: Literal["behind", "beside", "in front"],
) -> Logits:
    """Logits behind the tokens from BEGUN on, of which all but the last are computed in one pass
    with wrong guesses. These are rejected, but for those in front, which the tokens see.
    """
    rest, n = tokens[BEGUN:-1], len(wrong)
    new = [*rest, *wrong] if place == "behind" else [*wrong, *rest]
    parents = chain_parents(len(new))
    rows = range(len(rest)) if place == "behind" else range(n, len(new))
    if place == "beside":
        parents = (*[-1] * (n + 1), *rows[:-1])
    in_passes(session, tokens[:BEGUN], [BEGUN])
    among = session.forward(new, parents, rows)
    session.keep(range(len(new)) if place == "in front" else rows)
    return np.concatenate([among, session.forward(tokens[-1:], (-1,), (0,))])


def sample(vocabulary: int, count: int = TOKENS, seed: int = 0) -> list[int]:
    """A test's text."""
    return np.random.default_rng(seed).integers(vocabulary // 4, vocabulary, count).tolist()


def in_passes(session: Session, tokens: Sequence[int], widths: Sequence[int]) -> Logits:
    """Logits [n, V] behind n tokens, computed in chains of these widths; the session holds them
    alone.
    """
    session.truncate(0)
    logits, start = list[Logits](), 0
    for width in widths:
        logits.append(
            session.forward(tokens[start : start + width], chain_parents(width), range(width))
        )
        session.keep(range(width))
        start += width
    return np.concatenate(logits)


def distance(one: Logits, other: Logits) -> float:
    """How far apart logits are."""
    return float(np.linalg.norm(one - other))
