"""An EAGLE-3 draft over one text, whichever library runs it: what its rows see is decided here."""

from collections.abc import Sequence
from statistics import median
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from backend.engines.draft import DraftNetwork
from backend.engines.eagle3.checkpoint import Checkpoint
from backend.engines.eagle3.network import Eagle3Shape
from backend.engines.session import HIDDEN
from backend.types import HiddenStates

Floats = NDArray[np.float32]

#: The position of an empty slot: before every window.
EMPTY = -(1 << 31)

#: Rows that a round's first pass usually reads.
USUAL = 3

#: More bytes than a processor's caches hold.
CACHES = 1 << 26


class Eagle3Network(DraftNetwork):
    """A row stands for a token and the target's hidden states at the token before it; of a guess,
    for what the draft itself gave there, `state` [1, D]. The rows lie in a ring: that of position p
    in slot p modulo their number. One slot more takes the rows that pad a pass.
    """

    name = title = "trained draft"

    def __init__(self, checkpoint: Checkpoint, seconds: float) -> None:
        """`seconds`: of a pass in a round, on average."""
        self.shape: Eagle3Shape = checkpoint.network.shape
        self.layers, self.vocabulary = checkpoint.layers, checkpoint.vocabulary
        self.window, self.seconds = self.shape.window, seconds
        self.state: HiddenStates = np.zeros((1, self.shape.hidden), np.float32)
        self._places = np.full(self.shape.slots + 1, EMPTY, np.int64)  # of the rows in the ring

    def place(self, position: int, n: int, bias: Floats) -> NDArray[np.int64]:
        """Have the ring hold the n rows of a pass from `position` on: their positions, [n]. `bias`
        [width, slots + 1 + width] becomes what a pass of `width` rows, of which the first ones pad
        it, adds to its scores.
        """
        positions = np.arange(position, position + n)
        ring, padding = len(self._places), len(bias) - n
        bias.fill(HIDDEN)
        bias[padding:, :ring][self._places > positions[:, None] - self.window] = 0
        bias[:, ring:][np.tri(len(bias), dtype=bool)] = 0
        bias[padding:, ring : ring + padding] = HIDDEN
        self._places[positions % self.shape.slots] = positions
        return positions

    def rewind(self, length: int) -> None:
        self._places[self._places >= length] = EMPTY


def call_seconds(network: Eagle3Network, widths: Sequence[int], repeats: int = 10) -> float:
    """Mean seconds of a pass as rounds make them: the first reads a few rows and finds the
    processor's caches full of the target, the second is of one row and does not.
    """
    others, seconds = np.zeros(CACHES, np.uint8), list[float]()
    for rows in (*widths, *[USUAL] * repeats):  # each width is slow at first
        states = np.zeros((rows, network.shape.states), np.float32)
        others += 1
        start = perf_counter()
        network.read(0, [0] * rows, states, wanted=True)
        network.read(0, [0], None, wanted=True)
        seconds.append((perf_counter() - start) / 2)
    network.close()
    return median(seconds[len(widths) :])
