"""The target's hidden states of a text's tokens, for a draft that reads them."""

import numpy as np

from backend.types import LAST_LAYER, HiddenStates, Layers


class KnownStates:
    """Of the tokens from `start` up to `end`: a drafter that reads them makes one, and the context
    fills it with those of every token that it keeps. Those of tokens that were in the cache from
    the outset, as in a session that stayed open, are not known. `layers`: whose they are.
    """

    def __init__(self, layers: Layers = LAST_LAYER) -> None:
        self.layers = layers
        self.start = self.end = 0
        self._rows = np.zeros((0, 0), dtype=np.float32)  # [capacity, D], filled from the front

    def since(self, position: int) -> HiddenStates:
        """Those of the tokens from `position` on. A view.

        Raises RuntimeError if they are not known.
        """
        if not self.start <= position:
            raise RuntimeError(f"{position}: known from {self.start}")
        return self._rows[position - self.start : self.end - self.start]

    def add(self, position: int, rows: HiddenStates) -> None:
        """Take those of the tokens from `position` on; copies them."""
        if position != self.end:
            self.start = self.end = position
        filled, needed = self.end - self.start, self.end - self.start + len(rows)
        if needed > len(self._rows):
            larger = np.zeros((max(2 * needed, 256), rows.shape[1]), dtype=np.float32)
            if filled:
                larger[:filled] = self._rows[:filled]
            self._rows = larger
        self._rows[filled:needed] = rows
        self.end = position + len(rows)

    def truncate(self, length: int) -> None:
        """Forget those of tokens behind the first `length`."""
        self.start, self.end = min(self.start, length), min(self.end, length)
