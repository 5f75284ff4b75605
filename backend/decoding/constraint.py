"""The seam for what restricts the text."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from backend.types import Proposal


class Masks(NamedTuple):
    """`allowed`: one row per logits row, True where a token is allowed, bool [1 + drafted, V]; no
    rows at all mean that everything is. `seconds`: what each row took to compute, if it did.
    """

    allowed: NDArray[np.bool_]
    seconds: tuple[float, ...] = ()


UNMASKED = Masks(np.ones((0, 0), dtype=np.bool_))


class Constraint:
    """Restricts the text; by itself in nothing. Its state moves in `advance` only, over committed
    tokens only.
    """

    def forced(self, budget: int) -> Sequence[int]:
        """The only legal continuation, at most `budget` tokens."""
        return ()

    def cut(self, proposal: Proposal) -> Proposal:
        """The proposal without drafted tokens that the constraint rules out; scratch untouched."""
        return proposal

    def masks_along(self, proposal: Proposal) -> Masks:
        """Allowed tokens after the root (row 0) and after drafted token i (row i + 1)."""
        return UNMASKED

    def start_masks(self, proposal: Proposal) -> Callable[[], Masks]:
        """Begin `masks_along`; what is returned waits for it. Nothing else may be called between
        the two: the target's forward pass runs there.
        """
        masks = self.masks_along(proposal)
        return lambda: masks

    def advance(self, tokens: Sequence[int]) -> None:
        """Take committed tokens."""

    def finished(self) -> bool:
        """True when nothing but the end of the text may follow."""
        return False

    def answer(self) -> str:
        """The text so far that is restricted: without a model's thinking in front of it."""
        return ""

    def expected(self) -> str:
        """What must follow before the text may end, in words; "" if it may end here."""
        return ""
