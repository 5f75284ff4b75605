"""The seam between drafting with a trained head and the library that runs it."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from backend.heads.shape import HeadShape

Floats = NDArray[np.float32]


class HeadPass(NamedTuple):
    """Of one pass over n rows: logits [V'] and feature [D] of the last row, and the rows' keys and
    values, [layers, kv_heads, n, d] each.
    """

    logits: Floats
    feature: Floats
    keys: Floats
    values: Floats


class Predicted(NamedTuple):
    """Logits [V'] and feature [D] of a pass's last row."""

    logits: Floats
    feature: Floats


class Ring(Protocol):
    """A head's cache of one text: as many slots as the head attends to, the row of position p in
    slot p modulo their number.
    """

    def run(
        self,
        features: Floats,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        bias: Floats,
    ) -> Predicted:
        """Run n rows behind the ring and put them into their slots; `bias` [n, window + n], for the
        slots and the rows themselves. See TorchHead.forward for the other shapes.
        """
        ...

    def take(self, slot: int) -> Any:
        """A copy of the row in a slot, for `put` to put back."""
        ...

    def put(self, slot: int, row: Any) -> None: ...

    def close(self) -> None:
        """Give back what is lent."""
        ...


class Head(Protocol):
    """A loaded head; it holds no text.

    `vocabulary` int64 [V'] are the target's ids of its logits; `seconds` is what a pass takes
    in a round, on average.
    """

    @property
    def shape(self) -> HeadShape: ...

    @property
    def vocabulary(self) -> NDArray[np.int64]: ...

    @property
    def seconds(self) -> float: ...

    def open(self) -> Ring:
        """An empty cache for a new text."""
        ...


class HostRing:
    """A ring in host memory, for a head that is handed all of it in every pass."""

    def __init__(self, shape: HeadShape, run: Callable[..., HeadPass]) -> None:
        """`run(features, tokens, positions, keys, values, bias)`, the cache as the ring holds it:
        float32 [layers, kv_heads, window, d].
        """
        size = (shape.layers, shape.kv_heads, shape.window, shape.head_dim)
        self._keys = np.zeros(size, dtype=np.float32)
        self._values = np.zeros(size, dtype=np.float32)
        self._run = run

    def run(
        self,
        features: Floats,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        bias: Floats,
    ) -> Predicted:
        done = self._run(features, tokens, positions, self._keys, self._values, bias)
        slots = positions % self._keys.shape[2]
        self._keys[:, :, slots] = done.keys
        self._values[:, :, slots] = done.values
        return Predicted(done.logits, done.feature)

    def take(self, slot: int) -> tuple[Floats, Floats]:
        return self._keys[:, :, slot].copy(), self._values[:, :, slot].copy()

    def put(self, slot: int, row: tuple[Floats, Floats]) -> None:
        self._keys[:, :, slot], self._values[:, :, slot] = row

    def close(self) -> None:
        """Nothing is lent."""
