"""Token healing: the last token of fixed text is taken back, and what replaces it must begin so.

A prompt that ends in "http:" makes "//" unlikely, because texts spell "http://" with the token
"://". Given back, the model may choose the spelling that it has learnt.
"""

from collections.abc import Sequence

import numpy as np

from backend.decoding.constraint import UNMASKED, Constraint, Masks
from backend.decoding.drafter import NOTHING
from backend.types import Proposal


class Healing(Constraint):
    """The first token must be one of `allowed`; after it everything may follow."""

    def __init__(self, allowed: Sequence[int], vocab_size: int) -> None:
        self._first = np.zeros(vocab_size, dtype=np.bool_)
        self._first[list(allowed)] = True
        self._done = False

    def cut(self, proposal: Proposal) -> Proposal:
        """Nothing is drafted for the first token, which is sampled under the mask."""
        return proposal if self._done else NOTHING

    def masks_along(self, proposal: Proposal) -> Masks:
        return UNMASKED if self._done else Masks(self._first[None])

    def advance(self, tokens: Sequence[int]) -> None:
        self._done = self._done or bool(tokens)
