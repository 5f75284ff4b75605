"""The seam between drafting with a trained head and the library that runs it."""

from typing import NamedTuple, Protocol

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


class Head(Protocol):
    """A loaded head; it holds no text.

    `vocabulary` int64 [V'] are the target's ids of its logits; `seconds` is what a call takes
    in a round, on average.
    """

    @property
    def shape(self) -> HeadShape: ...

    @property
    def vocabulary(self) -> NDArray[np.int64]: ...

    @property
    def seconds(self) -> float: ...

    def run(
        self,
        features: Floats,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        keys: Floats,
        values: Floats,
        bias: Floats,
    ) -> HeadPass:
        """Run n rows behind a window of P cached ones; see TorchHead.forward for the shapes."""
        ...
