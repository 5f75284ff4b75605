"""The seam for what restricts the text, and the constraint that restricts nothing."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from backend.drafters.base import NOTHING
from backend.types import Proposal

#: One boolean row per logits row, True where a token is allowed: bool [1 + drafted, V].
#: No rows at all means that everything is allowed.
Masks = NDArray[np.bool_]

UNMASKED: Masks = np.ones((0, 0), dtype=np.bool_)


class Constraint(Protocol):
    """Its state moves in `advance` only, over committed tokens only."""

    def forced(self, budget: int) -> Proposal:
        """The only legal continuation, at most `budget` tokens, as a chain to be verified."""
        ...

    def cut(self, proposal: Proposal) -> Proposal:
        """The proposal without drafted tokens that the constraint rules out; scratch untouched."""
        ...

    def masks_along(self, proposal: Proposal) -> Masks:
        """Allowed tokens after the root (row 0) and after drafted token i (row i + 1)."""
        ...

    def advance(self, tokens: Sequence[int]) -> None: ...

    def finished(self) -> bool:
        """True when nothing but the end of the text may follow."""
        ...


class NullConstraint:
    """Allows everything."""

    def forced(self, budget: int) -> Proposal:
        return NOTHING

    def cut(self, proposal: Proposal) -> Proposal:
        return proposal

    def masks_along(self, proposal: Proposal) -> Masks:
        return UNMASKED

    def advance(self, tokens: Sequence[int]) -> None: ...

    def finished(self) -> bool:
        return False
