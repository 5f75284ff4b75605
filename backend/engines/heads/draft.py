"""A trained head as a draft network, and the seam to the library that runs it."""

from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from backend.engines.draft import DraftNetwork
from backend.engines.heads.file import HeadShape
from backend.types import HiddenStates, Logits

Floats = NDArray[np.float32]

#: Added to the attention score of a row that must not be seen.
HIDDEN = np.float32(-1e9)

#: The position of an empty slot: before every window.
EMPTY = -(1 << 31)

#: Rows that a round's first pass usually reads.
USUAL = 3

#: More bytes than a processor's caches hold.
CACHES = 1 << 26


class Ring(Protocol):
    """A head's cache of one text: the row of position p lies in slot p modulo their number, and one
    slot more takes the rows that pad a pass.
    """

    def run(
        self,
        features: Floats,
        tokens: Sequence[int],
        positions: NDArray[np.int64],
        visible: NDArray[np.bool_],
    ) -> tuple[Logits, HiddenStates]:
        """Run n rows and put them into their slots; `visible` [n, slots + 1]: what each sees of the
        ring, beside the rows up to itself. Logits [1, V'] and hidden state [1, D] of the last row.
        See TorchHead.forward for the other shapes.
        """
        ...

    def close(self) -> None:
        """Give back what is lent."""
        ...


class Head(Protocol):
    """A loaded head; it holds no text.

    `vocabulary` int64 [V'] are the target's ids of its logits; `seconds` is what a pass takes
    in a round, on average.
    """

    shape: HeadShape
    vocabulary: NDArray[np.int64]
    seconds: float

    def open(self) -> Ring:
        """An empty cache for a new text."""
        ...


class HeadNetwork(DraftNetwork):
    """A head as a DraftNetwork: a row stands for a token and the target's hidden state of the token
    before it. What a row sees is decided here, by the positions of the ring's rows.
    """

    name = title = "trained draft"
    layers = (-1,)

    def __init__(self, head: Head) -> None:
        self.seconds = head.seconds
        self.vocabulary = head.vocabulary
        self.window = head.shape.window
        self._ring = head.open()
        self._rows = np.full(head.shape.slots + 1, EMPTY, dtype=np.int64)  # positions
        self._state = np.zeros((1, head.shape.hidden), dtype=np.float32)  # that it predicted last

    def read(
        self, position: int, tokens: Sequence[int], states: HiddenStates, *, wanted: bool
    ) -> Logits:
        positions = np.arange(position, position + len(tokens))
        visible = self._rows > positions[:, None] - self.window
        logits, self._state = self._ring.run(states, tokens, positions, visible)
        self._rows[positions % (len(self._rows) - 1)] = positions
        return logits

    def guess(self, position: int, token: int) -> Logits:
        return self.read(position, [token], self._state, wanted=True)

    def rewind(self, length: int) -> None:
        self._rows[self._rows >= length] = EMPTY

    def close(self) -> None:
        self._ring.close()


def bias_of(visible: NDArray[np.bool_], width: int) -> Floats:
    """What a pass of `width` rows, whose last ones see of the ring what `visible` [n, slots + 1]
    says, adds to its scores: [width, slots + 1 + width]. The rows in front pad it: the others see
    none of them.
    """
    n, slots = visible.shape
    bias = np.full((width, slots + width), HIDDEN)
    bias[width - n :, :slots][visible] = 0
    bias[:, slots:][np.tri(width, dtype=bool)] = 0
    bias[width - n :, slots : slots + width - n] = HIDDEN
    return bias


def call_seconds(head: Head, widths: Sequence[int], repeats: int = 10) -> float:
    """Mean seconds of a pass as rounds make them: the first reads a few rows and finds the
    processor's caches full of the target, the second is of one row and does not.
    """
    network, others = HeadNetwork(head), np.zeros(CACHES, np.uint8)

    def seconds(rows: int) -> float:
        states = np.zeros((rows, head.shape.hidden), np.float32)
        start = perf_counter()
        network.read(0, [0] * rows, states, wanted=True)
        return perf_counter() - start

    for width in widths:  # each is slow at first
        seconds(width)
    first: list[float] = []
    second: list[float] = []
    for _ in range(repeats):
        others += 1
        first.append(seconds(USUAL))
        second.append(seconds(1))
    network.close()
    return (median(first) + median(second)) / 2
