"""Which lengths the text of a cache can be cut back to."""

from collections.abc import Sequence

from backend.types import Rewinds


class AnyRow:
    """Attention: any of them, because rows that are no longer wanted are not looked at."""

    #: Tokens of the checkpoint; 0: none was made, or the text was cut back to less.
    checkpoint = 0

    def nearest(self, length: int) -> int:
        """The greatest of them up to `length`, which is not above what is kept now."""
        return length

    def ran(self, held: int, rows: int, asked: Sequence[int]) -> None:
        """A pass has run `rows` new rows behind `held` kept ones, with logits of those `asked`."""

    def settled(self, length: int) -> None:
        """So many tokens are kept now: all of a cut text, or of one and what a pass has added."""

    def loaded(self, length: int) -> None:
        """The text is another one now, of so many tokens."""


class LastPass(AnyRow):
    """Recurrent state, which every row overwrites: to nothing, to a checkpoint, or of the pass that
    ran last to where it began, behind a row whose logits were asked for, or behind its last row.
    """

    def __init__(self) -> None:
        self._lengths: tuple[int, ...] = ()

    def nearest(self, length: int) -> int:
        return max(at for at in (0, self.checkpoint, *self._lengths) if at <= length)

    def ran(self, held: int, rows: int, asked: Sequence[int]) -> None:
        self._lengths = (held, *(held + row + 1 for row in asked), held + rows)

    def settled(self, length: int) -> None:
        self._lengths = tuple(at for at in self._lengths if at <= length)
        self.checkpoint = self.checkpoint if self.checkpoint <= length else 0

    def loaded(self, length: int) -> None:
        self._lengths, self.checkpoint = (length,), 0


REWINDING: dict[Rewinds, type[AnyRow]] = {"any row": AnyRow, "last pass": LastPass}
