"""A context of llama.cpp with the caches of its sequences, as stores use it."""

import weakref
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from backend.engines.cache import Store
from backend.engines.llamacpp.library import Batch, Library
from backend.engines.llamacpp.state import Layout
from backend.types import Logits

#: Cells of a new context. They are doubled as a text grows.
FIRST_CELLS = 1024

#: llama_pos: without an end.
END = -1


class Model(Protocol):
    """What a store needs of its engine. `width`: numbers in a row of logits. `most_cells`: those of
    the largest context. `copies`: whether what llama.cpp writes of a sequence is all of it; of
    layers with a sliding window it leaves out what they no longer see.
    """

    library: Library
    width: int
    most_cells: int
    copies: bool

    def context(self, cells: int, sequences: int) -> int: ...

    def layout(self) -> Layout: ...


class ContextStore(Store):
    """A store whose rows are cells of a context of its own."""

    def __init__(self, model: Model, sequences: int) -> None:
        self._model, self._library = model, model.library
        self._sequences = sequences
        self._begin(FIRST_CELLS)

    def _begin(self, cells: int) -> None:
        """Take a new, empty context of so many cells."""
        self._cells = cells
        self._context = self._model.context(cells, self._sequences)
        self._memory = self._library.llama_get_memory(self._context)
        self._free = weakref.finalize(self, self._library.llama_free, self._context)

    def _larger(self, needed: int) -> int:
        """Cells of a context that holds so many, and leaves room for more."""
        cells = self._cells
        while needed > cells - cells // 8:
            cells *= 2
        return min(cells, self._model.most_cells)

    def _decode(
        self,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        members: Sequence[Sequence[int]],
        rows: NDArray[np.int64],
    ) -> Logits:
        """Run tokens that belong to these sequences: logits of these rows, [len(rows), V]."""
        wanted, places = np.unique(rows, return_inverse=True)
        ids, where = tokens.astype(np.int32), positions.astype(np.int32)
        counts = np.array([len(of) for of in members], dtype=np.int32)
        sequences = np.array([i for of in members for i in of], dtype=np.int32)
        firsts = np.cumsum(counts, dtype=np.uint64) - counts.astype(np.uint64)
        addresses = np.uint64(sequences.ctypes.data) + firsts * np.uint64(sequences.itemsize)
        asked = np.zeros(len(ids), dtype=np.int8)
        asked[wanted] = 1
        library, width = self._library, self._model.width
        batch = Batch(
            len(ids),
            ids.ctypes.data,
            None,
            where.ctypes.data,
            counts.ctypes.data,
            addresses.ctypes.data,
            asked.ctypes.data,
        )
        library.said.clear()
        if code := library.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode returned {code}: {library.first_error}")
        if not len(wanted):
            return np.zeros((0, width), dtype=np.float32)
        logits = library.llama_get_logits(self._context)
        return np.ctypeslib.as_array(logits, (len(wanted), width))[places]

    def _copy(self, source: int, target: int, start: int, end: int) -> None:
        self._library.llama_memory_seq_cp(self._memory, source, target, start, end)

    def _remove(self, sequence: int, start: int) -> None:
        if not self._library.llama_memory_seq_rm(self._memory, sequence, start, END):
            raise RuntimeError(f"llama.cpp cannot rewind this cache to {start} tokens")

    def written(self, sequence: int) -> bytes:
        """What llama.cpp writes of the cells of a sequence."""
        size = self._library.llama_state_seq_get_size(self._context, sequence)
        buffer = np.empty(size, dtype=np.uint8)
        data = buffer.ctypes.data
        count = self._library.llama_state_seq_get_data(self._context, data, size, sequence)
        return buffer[:count].tobytes()

    def _take(self, written: bytes, sequence: int) -> None:
        """Have an empty sequence hold what was written of one. Raises RuntimeError for what this
        model has not written.
        """
        size, context = len(written), self._context
        self._library.said.clear()
        if self._library.llama_state_seq_set_data(context, written, size, sequence) != size:
            raise RuntimeError(f"llama.cpp took no cache: {self._library.first_error}")

    def close(self) -> None:
        self._free()
