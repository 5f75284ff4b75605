"""How an EAGLE-3 draft reads and guesses, on whichever library runs it: over a ring of rows."""

from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from backend.engines.draft import DraftNetwork
from backend.engines.eagle3.network import Eagle3Shape
from backend.types import HiddenStates, Layers, Logits

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
    """A draft's cache of one text: the row of position p lies in slot p modulo their number, and
    one slot more takes the rows that pad a pass.
    """

    def run(
        self,
        read: HiddenStates,
        tokens: Sequence[int],
        positions: NDArray[np.int64],
        visible: NDArray[np.bool_],
        *,
        own: bool,
    ) -> tuple[Logits, HiddenStates]:
        """Run n rows and put them into their slots. `read` [n, S]: the target's hidden states at
        the token before each; or, `own`, [n, D]: what the draft gave there. `visible`
        [n, slots + 1]: what each row sees of the ring, beside the rows up to itself. Gives logits
        [1, V'] behind the last row, and what the draft gave there, [1, D].
        """
        ...

    def close(self) -> None:
        """Give back what is lent."""
        ...


class LoadedDraft(Protocol):
    """A draft beside its target; it holds no text. `layers` and `vocabulary`: see DraftNetwork.
    `seconds`: what a pass takes in a round, on average.
    """

    shape: Eagle3Shape
    layers: Layers
    vocabulary: NDArray[np.int64] | None
    seconds: float

    def open(self) -> Ring:
        """An empty cache for a new text."""
        ...


class Eagle3Network(DraftNetwork):
    """A row stands for a token and the target's hidden states of the token before it. What a row
    sees is decided here, by the positions of the ring's rows.
    """

    name = title = "trained draft"

    def __init__(self, draft: LoadedDraft) -> None:
        self.seconds, self.layers = draft.seconds, draft.layers
        self.vocabulary, self.window = draft.vocabulary, draft.shape.window
        self._ring = draft.open()
        self._rows = np.full(draft.shape.slots + 1, EMPTY, dtype=np.int64)  # positions
        self._state = np.zeros((1, draft.shape.hidden), dtype=np.float32)  # that it gave last

    def read(
        self, position: int, tokens: Sequence[int], states: HiddenStates, *, wanted: bool
    ) -> Logits:
        return self._run(position, tokens, states, own=False)

    def guess(self, position: int, token: int) -> Logits:
        return self._run(position, [token], self._state, own=True)

    def _run(
        self, position: int, tokens: Sequence[int], read: HiddenStates, *, own: bool
    ) -> Logits:
        positions = np.arange(position, position + len(tokens))
        visible = self._rows > positions[:, None] - self.window
        logits, self._state = self._ring.run(read, tokens, positions, visible, own=own)
        self._rows[positions % (len(self._rows) - 1)] = positions
        return logits

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


def call_seconds(draft: LoadedDraft, widths: Sequence[int], repeats: int = 10) -> float:
    """Mean seconds of a pass as rounds make them: the first reads a few rows and finds the
    processor's caches full of the target, the second is of one row and does not.
    """
    network, others = Eagle3Network(draft), np.zeros(CACHES, np.uint8)

    def seconds(rows: int) -> float:
        states = np.zeros((rows, draft.shape.states), np.float32)
        start = perf_counter()
        network.read(0, [0] * rows, states, wanted=True)
        return perf_counter() - start

    for width in widths:  # each is slow at first
        seconds(width)
    network.guess(0, 0)
    first: list[float] = []
    second: list[float] = []
    for _ in range(repeats):
        others += 1
        first.append(seconds(USUAL))
        start = perf_counter()
        network.guess(0, 0)
        second.append(perf_counter() - start)
    network.close()
    return (median(first) + median(second)) / 2
