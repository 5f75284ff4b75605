"""A grammar that begins where a model's thinking ends: behind the closing tag of one that the
prompt has opened, as chat templates of reasoning models do.
"""

import re
from collections.abc import Callable, Sequence

from backend.decoding.constraint import UNMASKED, Constraint, Masks
from backend.grammar.constraint import without
from backend.types import Proposal

#: How an opened prompt ends: <think>, <seed:think>, <thinking>, [THINK].
_OPENED = re.compile(r"([<\[])([a-z]*:?think(?:ing)?)([>\]])\s*$", re.IGNORECASE)
#: Tokens at the end of a prompt in which the tag is looked for.
_LAST = 16


def closing_tag(prompt: Sequence[int], piece: Callable[[int], str]) -> str:
    """What ends the thinking that the prompt has opened; "": it has opened none. `piece` gives a
    token's text.
    """
    opened = _OPENED.search("".join(map(piece, prompt[-_LAST:])))
    return "{}/{}{}".format(*opened.groups()) if opened else ""


class BehindThinking(Constraint):
    """Everything may be written up to the closing tag, and behind it what `constraint` allows.

    No guess may close the tag: the token that does is always the last that a pass commits, so the
    next pass is the grammar's from its first row on.
    """

    def __init__(self, constraint: Constraint, closing: str, piece: Callable[[int], str]) -> None:
        self.thinking = True
        self._constraint = constraint
        self._closing = closing
        self._piece = piece
        self._end = ""  # of the text, as much as may begin the tag

    def forced(self, budget: int) -> Sequence[int]:
        return () if self.thinking else self._constraint.forced(budget)

    def cut(self, proposal: Proposal) -> Proposal:
        """See Constraint. Without the guesses that close the tag, and those behind them."""
        if not self.thinking:
            return self._constraint.cut(proposal)
        ends: list[str | None] = []  # of the text up to each token; None: it is cut off
        for token, parent in zip(
            proposal.tokens[: proposal.drafted], proposal.parents, strict=False
        ):
            before = ends[parent] if parent >= 0 else self._end
            ends.append(None if before is None else self._after(before, token))
        kept = [end is not None for end in ends]
        return proposal if all(kept) else without(proposal, kept)

    def masks_along(self, proposal: Proposal) -> Masks:
        return UNMASKED if self.thinking else self._constraint.masks_along(proposal)

    def start_masks(self, proposal: Proposal) -> Callable[[], Masks]:
        return (
            super().start_masks(proposal)
            if self.thinking
            else self._constraint.start_masks(proposal)
        )

    def advance(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if not self.thinking:
                self._constraint.advance([token])
            elif (end := self._after(self._end, token)) is None:
                self.thinking = False
            else:
                self._end = end

    def finished(self) -> bool:
        return not self.thinking and self._constraint.finished()

    def expected(self) -> str:
        """See Constraint. A text that ends while the model thinks lacks its answer."""
        return repr(self._closing) if self.thinking else self._constraint.expected()

    def _after(self, end: str, token: int) -> str | None:
        """The end of a text that goes on with this token; None if that closes the tag."""
        text = end + self._piece(token)
        return None if self._closing in text else text[1 - len(self._closing) :]
