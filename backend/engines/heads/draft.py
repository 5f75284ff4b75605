"""A trained head as a draft network, and the seam to the library that runs it."""

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from backend.engines.draft import DraftNetwork
from backend.engines.heads.file import HeadShape
from backend.types import PREFILL_CHUNK, HiddenStates, Logits

Floats = NDArray[np.float32]

#: Added to the attention score of a row that must not be seen.
HIDDEN = np.float32(-1e9)

#: Rows that a round's first pass usually feeds.
USUAL = 3

#: More bytes than a processor's caches hold.
CACHES = 1 << 26


class HeadPass(NamedTuple):
    """Of one pass over n rows: logits [1, V'] and hidden state [1, D] of the last row, and the
    rows' keys and values, [layers, kv_heads, n, d] each.
    """

    logits: Floats
    state: Floats
    keys: Floats
    values: Floats


class Ring(Protocol):
    """A head's cache of one text: the row of position p lies in slot p modulo their number."""

    def run(
        self,
        features: Floats,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        bias: Floats,
    ) -> tuple[Logits, HiddenStates]:
        """Run n rows behind the ring and put them into their slots; `bias` [n, slots + n], for the
        slots and the rows themselves. Logits [1, V'] and hidden state [1, D] of the last row. See
        TorchHead.forward for the other shapes.
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
        self._rows = np.full(head.shape.slots, -1, dtype=np.int64)  # positions; -1: none
        self._state = np.zeros((1, head.shape.hidden), dtype=np.float32)  # that it predicted last

    def read(
        self, position: int, tokens: Sequence[int], states: HiddenStates, *, wanted: bool
    ) -> Logits:
        n, slots = len(tokens), len(self._rows)
        positions = np.arange(position, position + n)
        bias = np.full((n, slots + n), HIDDEN)
        near = self._rows > positions[:, None] - self.window
        bias[:, :slots][near & (self._rows >= 0)] = 0
        bias[:, slots:][np.tri(n, dtype=bool)] = 0
        ids: NDArray[np.int64] = np.array(tokens, dtype=np.int64)
        logits, self._state = self._ring.run(np.ascontiguousarray(states), ids, positions, bias)
        self._rows[positions % slots] = positions
        return logits

    def guess(self, position: int, token: int) -> Logits:
        return self.read(position, [token], self._state, wanted=True)

    def rewind(self, length: int) -> None:
        self._rows[self._rows >= length] = -1

    def close(self) -> None:
        self._ring.close()


class HostRing:
    """A ring in host memory, for a head that is handed all of it in every pass."""

    def __init__(self, shape: HeadShape, run: Callable[..., HeadPass]) -> None:
        """`run(features, tokens, positions, keys, values, bias)`, the cache as the ring holds it:
        float32 [layers, kv_heads, slots, d].
        """
        size = (shape.layers, shape.kv_heads, shape.slots, shape.head_dim)
        self._keys = np.zeros(size, dtype=np.float32)
        self._values = np.zeros(size, dtype=np.float32)
        self._run = run

    def run(
        self,
        features: Floats,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        bias: Floats,
    ) -> tuple[Logits, HiddenStates]:
        done = self._run(features, tokens, positions, self._keys, self._values, bias)
        slots = positions % self._keys.shape[2]
        self._keys[:, :, slots] = done.keys
        self._values[:, :, slots] = done.values
        return done.logits, done.state

    def close(self) -> None:
        """Nothing is lent."""


def step_seconds(head: Head, repeats: int = 40) -> float:
    """Mean seconds of a pass as rounds make them: the first feeds a few rows and finds the
    processor's caches full of the target, the second is of one row and does not.
    """
    shape, ring = head.shape, head.open()
    others = np.zeros(CACHES, np.uint8)
    times: list[float] = []
    for rows in (*range(1, 17), PREFILL_CHUNK, *[USUAL, 1] * (repeats // 2)):
        if rows == USUAL:
            others += 1
        features = np.zeros((rows, shape.hidden), np.float32)
        ids = np.zeros(rows, np.int64)
        bias = np.zeros((rows, shape.slots + rows), np.float32)
        start = perf_counter()
        ring.run(features, ids, np.arange(rows), bias)
        times.append(perf_counter() - start)
    ring.close()
    measured = times[-repeats:]
    return (median(measured[::2]) + median(measured[1::2])) / 2
