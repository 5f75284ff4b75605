"""What a loaded model can do, found by running it: nobody keeps a list of architectures.

Twelve tokens are computed one by one, as a chain, and as a tree with a wrong sibling that is then
cut back. Where that gives other logits, guesses cannot be checked so.
"""

import logging
from collections.abc import Callable, Sequence

import numpy as np

from backend.engines.session import Session
from backend.types import Guesses, Logits, chain_parents

log = logging.getLogger(__name__)

TOKENS, BEGUN = 12, 5

#: Logits may differ by this share of the largest. Rounding in float32 takes 1e-5, and in 8 or 16
#: bits, where experts may be chosen otherwise, much more; a wrong mask or position in float32
#: changes them by 1e-2.
PRECISE, ROUNDED = 1e-3, 0.25


def self_test(open_session: Callable[[], Session], vocabulary: int, bound: float) -> Guesses:
    """What a model's passes may check. `bound`: PRECISE or ROUNDED, as its arithmetic is."""
    tokens = sample(vocabulary)
    one_by_one: Logits = np.zeros((0, 0), np.float32)
    guesses: Guesses = "none"
    try:
        one_by_one = in_passes(open_session, tokens, [1] * TOKENS)
        if alike(in_passes(open_session, tokens, (BEGUN, TOKENS - BEGUN)), one_by_one, bound):
            guesses = "chains"
            if alike(_beside_a_wrong_guess(open_session, tokens), one_by_one[BEGUN:], bound):
                guesses = "trees"
    except Exception as error:  # whatever the code of others raises with our caches
        if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__:
            raise
        log.info("the self-test ended at %s", guesses, exc_info=True)
    return guesses


def _beside_a_wrong_guess(open_session: Callable[[], Session], tokens: list[int]) -> Logits:
    """Logits behind the tokens from BEGUN on; all but the last of these are computed in a tree in
    which they hang from the second row.
    """
    session, rest = open_session(), tokens[BEGUN:-1]
    rows = range(1, len(rest) + 1)
    session.forward(tokens[:BEGUN], chain_parents(BEGUN), (0,))
    session.keep(range(BEGUN))
    beside = session.forward([tokens[0], *rest], (-1, -1, *rows[:-1]), rows)
    session.keep(rows)
    behind = session.forward(tokens[-1:], (-1,), (0,))
    session.close()
    return np.concatenate([beside, behind])


def sample(vocabulary: int) -> list[int]:
    """The test's text."""
    return np.random.default_rng(0).integers(vocabulary // 4, vocabulary, TOKENS).tolist()


def in_passes(
    open_session: Callable[[], Session], tokens: Sequence[int], widths: Sequence[int]
) -> Logits:
    """Logits [n, V] behind n tokens, computed in chains of these widths."""
    session, logits, start = open_session(), list[Logits](), 0
    for width in widths:
        logits.append(
            session.forward(tokens[start : start + width], chain_parents(width), range(width))
        )
        session.keep(range(width))
        start += width
    session.close()
    return np.concatenate(logits)


def alike(got: Logits, want: Logits, bound: float) -> bool:
    """Whether logits are the same but for rounding. Those that are no numbers come of damaged
    weights, which whoever runs them says.
    """
    if np.isnan(want).any():
        return True
    return bool(np.abs(got - want).max() <= bound * np.abs(want).max())
