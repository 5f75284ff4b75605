"""Several sequences whose passes are one: their rows, whatever an engine computes them with.

The caches of b sequences lie beside one another as b equally long lists of rows. Every pass
appends n rows to each of them, n being what the sequence with most new tokens needs; the others'
spare rows, and those that are not kept, are holes that later masks hide.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from backend.engines.tree import depths, require_path, visibility
from backend.types import Arrays, HiddenStates, Logits

#: A compaction costs about as much as this many reads of a hole by one forward pass, plus as many
#: per cached row.
COMPACTION_BASE = 4000
COMPACTION_PER_ROW = 14


@dataclass(frozen=True, slots=True)
class NewRows:
    """What one sequence has computed in a pass: see Session.forward. () takes no part."""

    tokens: Sequence[int] = ()
    parents: Sequence[int] = ()
    rows: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class BatchPass:
    """One pass of b sequences over n new rows each, behind P cached ones.

    tokens, positions: int64 [b, n]; keys: the position of every row, int64 [b, P + n], of which
    those of holes mean nothing; visible: bool [b, n, P + n]; rows: int64 [r], the new rows whose
    logits are wanted, of every sequence the same.
    """

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    keys: NDArray[np.int64]
    visible: NDArray[np.bool_]
    rows: NDArray[np.int64]

    def within(self, window: int) -> NDArray[np.bool_]:
        """`visible` as far as a layer sees that slides over so many positions."""
        distance = self.positions[:, :, None] - self.keys[:, None, :]
        return self.visible & (distance < window)


class BatchPasses(Protocol):
    """The b caches on the device, and what runs passes behind them."""

    def run(self, batch: BatchPass) -> tuple[Logits, HiddenStates]:
        """Append the rows: logits [b, r, V] and hidden states [b, n, D], valid until the next
        pass. Hidden states may be empty, where the engine has none.
        """
        ...

    def gather(self, index: NDArray[np.int64]) -> None:
        """Have every cache hold these of its rows, int64 [b, m], and no others."""
        ...

    def load(self, arrays: Arrays, requests: int) -> None:
        """Begin each of the caches with what Session.export gave; they must be empty."""
        ...

    def close(self) -> None:
        """Release the caches. Idempotent."""
        ...


class Batch:
    """The KV caches of `requests` sequences. Not thread-safe."""

    def __init__(self, passes: BatchPasses, requests: int) -> None:
        self._passes = passes
        self._visible = np.zeros((requests, 0), dtype=np.bool_)  # of the cached rows
        self._pending: list[tuple[int, ...]] = [()] * requests  # parent links of new rows
        self._asked = [0] * requests  # tokens of the last pass
        self._start = 0  # the place of the first new row
        self._hidden: HiddenStates = np.zeros((requests, 0, 0), dtype=np.float32)
        self._debt = 0  # reads of holes since the last compaction

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens kept so far, by sequence."""
        return tuple(self._visible.sum(axis=1).tolist())

    @property
    def held(self) -> int:
        """Rows in the cache of each sequence, holes included."""
        return self._visible.shape[1]

    def forward(self, asked: Sequence[NewRows]) -> list[Logits]:
        """Run one pass over the new rows of every sequence: of each, logits [rows asked for, V].

        They stay pending, each sequence's, until `keep` or `truncate`. Raises RuntimeError if a
        sequence that takes part has pending rows, or if none takes part.
        """
        n = max((len(new.tokens) for new in asked), default=0)
        if n == 0 or any(new.tokens and self._pending[i] for i, new in enumerate(asked)):
            raise RuntimeError("forward before keep, or without tokens")
        self._compact_if_worthwhile()
        batch = self._pass(asked, n)
        logits, self._hidden = self._passes.run(batch)
        self._start = self.held
        spare = np.zeros((len(asked), n), dtype=np.bool_)
        self._visible = np.concatenate([self._visible, spare], axis=1)
        self._pending = [tuple(new.parents) for new in asked]
        self._asked = [len(new.tokens) for new in asked]
        places = {int(row): place for place, row in enumerate(batch.rows)}
        return [logits[i, [places[row] for row in new.rows]].copy() for i, new in enumerate(asked)]

    def _pass(self, asked: Sequence[NewRows], n: int) -> BatchPass:
        b, held = self._visible.shape
        lengths = self._visible.sum(axis=1)
        tokens = np.zeros((b, n), dtype=np.int64)
        positions = np.repeat(lengths[:, None], n, axis=1).astype(np.int64)
        visible = np.zeros((b, n, held + n), dtype=np.bool_)
        visible[:, :, :held] = self._visible[:, None, :]
        # Every row sees itself, spare ones too: attention over nothing is not a number.
        visible[:, np.arange(n), held + np.arange(n)] = True
        for i, new in enumerate(asked):
            count = len(new.tokens)
            tokens[i, :count] = new.tokens
            positions[i, :count] += depths(new.parents)
            visible[i, :count, held : held + count] = visibility(new.parents)
        context = np.cumsum(self._visible, axis=1, dtype=np.int64) - 1
        rows = np.unique(np.array([row for new in asked for row in new.rows], dtype=np.int64))
        keys = np.concatenate([context, positions], axis=1)
        return BatchPass(tokens, positions, keys, visible, rows)

    def hidden_states(self, sequence: int) -> HiddenStates:
        """The last pass's final hidden states of this sequence's rows: a new array [n, D]."""
        return self._hidden[sequence, : self._asked[sequence]].copy()

    def keep(self, sequence: int, rows: Sequence[int]) -> None:
        """Make these pending rows of the sequence part of its context; forget its others."""
        require_path(rows, self._pending[sequence])
        self._visible[sequence, self._start + np.asarray(rows, dtype=np.int64)] = True
        self._pending[sequence] = ()

    def truncate(self, sequence: int, length: int) -> None:
        """Forget all of this sequence behind its first `length` tokens, and its pending rows."""
        context = np.flatnonzero(self._visible[sequence])
        if not 0 <= length <= len(context):
            raise RuntimeError(f"truncate to {length} of {len(context)} tokens")
        self._visible[sequence, context[length:]] = False
        self._pending[sequence] = ()

    def load(self, length: int, arrays: Arrays) -> None:
        """Begin every sequence with what Session.export(length) gave; all must be empty."""
        if self.held or length < 1:
            raise RuntimeError("load into a batch that is not empty, or of nothing")
        requests = len(self._visible)
        self._passes.load(arrays, requests)
        self._visible = np.ones((requests, length), dtype=np.bool_)

    def _compact_if_worthwhile(self) -> None:
        """Copy the caches without holes once reading those has cost as much as the copy."""
        longest = max(self.lengths)
        self._debt += self.held - longest
        if any(self._pending) or self._debt <= COMPACTION_BASE + COMPACTION_PER_ROW * longest:
            return
        self.compact()

    def compact(self) -> None:
        """Copy the caches without the holes that no sequence needs. Changes no logits."""
        lengths = self._visible.sum(axis=1)
        longest = max(1, int(lengths.max()))
        # A stable sort puts what is visible first, in its order; shorter ones end in holes.
        index = np.argsort(~self._visible, axis=1, kind="stable")[:, :longest]
        self._passes.gather(index)
        self._visible = np.arange(index.shape[1]) < lengths[:, None]
        self._debt = 0

    def close(self) -> None:
        """Release the caches. Idempotent."""
        self._passes.close()
