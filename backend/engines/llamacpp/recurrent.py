"""One text's cache of a model with recurrent state, in a context of llama.cpp.

Its states cannot be cut back, but they can be copied, for nothing until either copy is written to.
So the state where a pass began is kept in a sequence of its own; what was kept of that pass is
computed again, once it turns out that its end was rejected.
"""

import numpy as np
from numpy.typing import NDArray

from backend.engines.cache import Pass
from backend.engines.llamacpp.context import END, ContextStore, Model
from backend.types import Arrays, Logits

#: The sequences: the text, where its last pass began, and its checkpoint; and room for a copy.
TEXT, BEFORE, CHECKPOINT = 0, 1, 2
SEQUENCES = 4

#: What is exported: whatever llama.cpp writes of a sequence, bytes [n].
STATE = "state"

NO_TOKENS: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
NO_ROWS = NO_TOKENS


class RecurrentStore(ContextStore):
    """See Store. `_length`: the rows of TEXT, -1 after a pass that failed."""

    def __init__(self, model: Model) -> None:
        super().__init__(model, SEQUENCES)
        self._length = self._start = self._checkpoint = 0
        self._tokens = NO_TOKENS  # of the last pass, which began at `start`

    def run(self, work: Pass) -> Logits:
        if not work.plain:
            raise RuntimeError("a recurrent state has no holes and no branches")
        tokens, positions = work.tokens, work.positions
        self._go_to(work.held)
        self._require_room(len(tokens))
        self._become(BEFORE, TEXT)
        self._start, self._tokens, self._length = work.held, NO_TOKENS, -1
        logits = self._append(tokens, positions, work.rows)
        self._tokens, self._length = tokens, work.held + len(tokens)
        return logits

    def _append(
        self, tokens: NDArray[np.int64], positions: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> Logits:
        return self._decode(tokens, positions, [(TEXT,)] * len(tokens), rows)

    def _go_to(self, rows: int) -> None:
        """Have TEXT hold so many rows."""
        if rows == self._length:
            return
        if rows and self._start <= rows <= self._start + len(self._tokens):
            self._become(TEXT, BEFORE)
            self._tokens = self._tokens[: rows - self._start]
            if len(self._tokens):
                self._append(self._tokens, np.arange(self._start, rows), NO_ROWS)
        elif rows in (0, self._checkpoint):
            self._become(TEXT, CHECKPOINT if rows else None)
            self._start, self._tokens = rows, NO_TOKENS
            self._become(BEFORE, TEXT)
        else:
            raise RuntimeError(f"the state behind {rows} rows is gone")
        self._length = rows
        if rows < self._checkpoint:
            self._become(CHECKPOINT, None)
            self._checkpoint = 0

    def _become(self, sequence: int, source: int | None) -> None:
        """Make a sequence a copy of another one; None: empty it."""
        self._remove(sequence, 0)
        if source is not None:
            self._copy(source, sequence, 0, END)

    def _require_room(self, rows: int) -> None:
        """Have cells for so many more rows, if need be those of a larger context; there, sequences
        share none.
        """
        if self._length + rows <= self._cells - self._checkpoint:
            return
        larger = self._larger(self._length + self._checkpoint + rows)
        held = {TEXT: self._length, CHECKPOINT: self._checkpoint}
        written = {sequence: self.written(sequence) for sequence, count in held.items() if count}
        self._free()
        self._begin(larger)
        for sequence, state in written.items():
            self._take(state, sequence)
        self._start, self._tokens = self._length, NO_TOKENS
        self._become(BEFORE, TEXT)

    def checkpoint(self, rows: int) -> None:
        self._go_to(rows)
        self._become(CHECKPOINT, TEXT)
        self._checkpoint = rows

    def gather(self, start: int, index: NDArray[np.int64]) -> None:
        raise RuntimeError("a recurrent state has no holes to be taken out")

    def read(self, places: NDArray[np.int64]) -> Arrays:
        rows = len(places)
        kept = rows == self._checkpoint and rows != self._length
        if not kept:
            self._go_to(rows)
        return {STATE: np.frombuffer(self.written(CHECKPOINT if kept else TEXT), np.uint8)}

    def write(self, arrays: Arrays) -> None:
        if arrays.keys() != {STATE}:
            raise RuntimeError("arrays of another model")
        self._take(arrays[STATE].tobytes(), TEXT)
        self._length = self._library.llama_memory_seq_pos_max(self._memory, TEXT) + 1
        self._start, self._tokens = self._length, NO_TOKENS
        self._become(BEFORE, TEXT)

    def reserve(self, rows: int) -> None:
        self._require_room(2 * rows - self._length)  # a checkpoint may be as long as the text
