"""A session that remembers the features of its tokens, for a draft that reads them."""

from collections.abc import Sequence

import numpy as np

from backend.engines.base import Session
from backend.types import Arrays, HiddenStates, Logits


class HiddenStateSession:
    """Wraps a session whose engine declares features. Those of tokens that it held when it was
    wrapped are not known.
    """

    def __init__(self, inner: Session) -> None:
        self._inner = inner
        self._start = inner.length
        self._known = np.zeros((0, 0), dtype=np.float32)  # [capacity, D], filled from the front
        self._filled = 0

    @property
    def length(self) -> int:
        return self._inner.length

    @property
    def known_from(self) -> int:
        """The first position whose feature is known; those up to `length` are too."""
        return self._start

    def hidden_states_from(self, position: int) -> HiddenStates:
        """HiddenStates of the kept tokens from `position` on, which must be known. A view."""
        if not self._start <= position:
            raise RuntimeError(f"features from {position}, known from {self._start}")
        return self._known[position - self._start : self._filled]

    def expect(self, length: int) -> None:
        self._inner.expect(length)
        self._forget_beyond(self._inner.length)

    def forward(self, tokens: Sequence[int], parents: Sequence[int], rows: Sequence[int]) -> Logits:
        return self._inner.forward(tokens, parents, rows)

    def hidden_states(self) -> HiddenStates:
        return self._inner.hidden_states()

    def keep(self, rows: Sequence[int]) -> None:
        self._add(self._inner.hidden_states()[list(rows)])
        self._inner.keep(rows)

    def _add(self, rows: HiddenStates) -> None:
        end = self._filled + len(rows)
        if end > len(self._known):
            larger = np.zeros((max(2 * end, 256), rows.shape[1]), dtype=np.float32)
            if self._filled:
                larger[: self._filled] = self._known[: self._filled]
            self._known = larger
        self._known[self._filled : end] = rows
        self._filled = end

    def truncate(self, length: int) -> None:
        self._inner.truncate(length)
        self._forget_beyond(length)

    def _forget_beyond(self, length: int) -> None:
        self._start = min(self._start, length)
        self._filled = min(self._filled, length - self._start)

    def export(self, length: int) -> Arrays:
        return self._inner.export(length)

    def load(self, length: int, arrays: Arrays) -> None:
        """The loaded tokens' features stay unknown."""
        self._inner.load(length, arrays)
        self._start = length
        self._filled = 0

    def close(self) -> None:
        self._inner.close()
