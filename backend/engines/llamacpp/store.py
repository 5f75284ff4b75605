"""One text's cache in a context of llama.cpp, whose passes it runs.

llama.cpp has no masks: a row sees the cells of its own sequence at earlier positions. So each path
of a tree from the context down to a leaf is a sequence. Sequences 0 to `paths` - 1 all hold the
context, and a new row belongs to those whose path it is on (as in llama.cpp's own lookahead).
Rejected rows between kept ones are parked in a sequence of their own, so that cells stay in the
order of the text: in another order, attention would add up otherwise.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from backend.engines.cache import Pass
from backend.engines.llamacpp.context import END, ContextStore, Model
from backend.types import PREFILL_CHUNK, Arrays, Logits

#: Leaves of the widest tree (a lookahead window of 32, and 32 guesses), then the sequence where
#: rejected rows are parked.
MOST_PATHS = 71
PARKED = MOST_PATHS
SEQUENCES = MOST_PATHS + 1

#: Cells beside the text that a column may need: of guesses, and of rejected rows that are parked.
SPARE = 128

NO_ROWS: NDArray[np.int64] = np.zeros(0, dtype=np.int64)


class LlamaCppStore(ContextStore):
    """See Store. Its cells in use are the text's rows, and parked ones among them."""

    def __init__(self, model: Model) -> None:
        super().__init__(model, SEQUENCES)
        self._paths = 1  # sequences that hold the context
        self._length = 0  # rows of the text before the last pass
        self._parked = 0  # rejected rows among them
        self._text: list[int] = []  # its tokens, of a model whose caches cannot be copied
        self._tokens: NDArray[np.int64] = np.zeros(0, np.int64)  # of the last pass
        self._members: Sequence[Sequence[int]] = ()  # of each of its rows, its sequences
        self._depths: NDArray[np.int64] = np.zeros(0, np.int64)

    def run(self, work: Pass) -> Logits:
        tokens, positions, seen = work.tokens, work.positions, work.seen
        self._keep(range(work.held - self._length))
        self._cut(work.held)
        self._require_room(len(tokens))
        if work.plain:
            members: Sequence[Sequence[int]] = [range(self._paths)] * len(tokens)
        else:
            leaves = np.flatnonzero(seen.sum(axis=0) == 1)
            self._share(len(leaves))
            members = [np.flatnonzero(of).tolist() for of in seen[leaves].T]
        # Before the pass: what one leaves behind that fails is taken out by the next.
        self._members, self._depths = members, positions - self._length
        self._tokens = tokens
        return self._decode(tokens, positions, members, work.rows)

    def _keep(self, rows: Sequence[int]) -> None:
        """Make these rows of the last pass, a path, part of the text; the others go."""
        members, self._members = self._members, ()
        if not members:
            return
        start, end = self._length, self._length + len(rows)
        own = members[rows[-1]][0] if rows else 0
        if len(members[-1]) < self._paths:  # the last row of a tree is a leaf
            for row in set(range(rows[-1] if rows else 0)).difference(rows):
                at = start + int(self._depths[row])
                self._copy(members[row][0], PARKED, at, at + 1)
                self._parked += 1
            for other in set(range(self._paths)) - {own}:
                self._remove(other, start)
                self._copy(own, other, start, end)
        if len(rows) < len(members):
            for sequence in range(self._paths):
                self._remove(sequence, end)
        self._text += self._tokens[list(rows)].tolist()
        self._length = end

    def _cut(self, length: int) -> None:
        """Forget the text's rows behind so many."""
        if length >= self._length:
            return
        for sequence in range(self._paths):
            self._remove(sequence, length)
        del self._text[length:]
        self._length = length
        if self._parked:
            self._refill(self._cells)

    def _share(self, paths: int) -> None:
        """Have so many sequences at least hold the context."""
        if paths > MOST_PATHS:
            raise RuntimeError(f"a tree of {paths} leaves; {MOST_PATHS} are the most")
        for sequence in range(self._paths, paths):
            self._copy(0, sequence, 0, END)
        self._paths = max(self._paths, paths)

    def _require_room(self, rows: int) -> None:
        """Have cells for so many more rows: those of parked rows, or a larger context's."""
        needed = self._length + rows
        if needed + self._parked <= self._cells:
            return
        self._refill(self._larger(needed))

    def _refill(self, cells: int) -> None:
        """Lay the text's cells anew, into a context of so many, without parked ones."""
        written = self.written(0) if self._model.copies else b""
        self._parked = wipe = 0
        if cells == self._cells:
            self._library.llama_memory_clear(self._memory, wipe)
        else:
            self._free()
            self._begin(cells)
        self._fill(written)

    def _fill(self, written: bytes) -> None:
        """Have the empty context hold what was written of the text, or compute that again."""
        paths, self._paths = self._paths, 1
        if written:
            self._take(written, 0)
        for start in range(0, 0 if written else self._length, PREFILL_CHUNK):
            tokens = np.array(self._text[start : start + PREFILL_CHUNK])
            where = np.arange(start, start + len(tokens))
            self._decode(tokens, where, [(0,)] * len(tokens), NO_ROWS)
        self._share(paths)

    def gather(self, start: int, index: NDArray[np.int64]) -> None:
        """See Store. Before the last pass, nothing is moved."""
        rows = [start + int(row) - self._length for row in index]
        self._keep([row for row in rows if row >= 0])

    def read(self, places: NDArray[np.int64]) -> Arrays:
        last = len(places) - 1 - self._length
        own = self._members[last][0] if last >= 0 else 0
        return self._model.layout().arrays(self.written(own), len(places))

    def write(self, arrays: Arrays) -> None:
        written = self._model.layout().written(arrays)
        length = next(iter(arrays.values())).shape[2]
        self._require_room(length)
        self._length = length
        self._fill(written)

    def reserve(self, rows: int) -> None:
        self._require_room(rows + SPARE - self._length)
