"""The KV caches of b >= 1 sequences whose passes are one, whatever an engine computes them with.

The caches lie beside one another as b equally long lists of rows. Every pass appends n rows to each
of them, n being what the sequence with most new tokens needs. Spare rows, rejected ones and those
that a rewind forgets stay as holes that later masks hide, until taking them out costs less than
reading past them.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from backend.engines.rewinding import REWINDING
from backend.engines.tree import Tree, require_path, tree_of
from backend.errors import DerbyError
from backend.types import LAST_LAYER, Arrays, Capabilities, HiddenStates, Layers, Logits

#: A compaction costs about as much as this many reads of a hole by one forward pass, plus as many
#: per cached row.
COMPACTION_BASE = 4000
COMPACTION_PER_ROW = 14

#: Added to the attention score of what must not be seen.
HIDDEN = np.float32(np.finfo(np.float32).min)

#: Rows for which a new cache has a bias ready.
FIRST_CAPACITY = 1024


class NewRows(NamedTuple):
    """What one sequence has computed in a pass: see Session.forward. () takes no part."""

    tokens: Sequence[int] = ()
    parents: Sequence[int] = ()
    rows: Sequence[int] = ()


class Pass(NamedTuple):
    """One pass of b sequences over n new rows each, behind P cached ones. Nobody may write to it.

    tokens, positions: int64 [b, n]; seen: bool [b, n, n], which new rows each new row sees;
    context: float32 [b, P], 0 for cached rows that are context and HIDDEN for holes; rows: int64
    [r], the new rows whose logits are wanted, of every sequence the same. `plain`: there are no
    holes and each new row sees all before it, as any causal model has it without a mask.
    """

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    seen: NDArray[np.bool_]
    context: NDArray[np.float32]
    rows: NDArray[np.int64]
    plain: bool

    @property
    def held(self) -> int:
        """Cached rows that count; what the store may hold behind them is forgotten."""
        return self.context.shape[1]

    def bias(self) -> NDArray[np.float32]:
        """What is added to scores, float32 [b, 1, n, P + n]: 0 visible, HIDDEN hidden."""
        b, n = self.tokens.shape
        made = np.empty((b, 1, n, self.held + n), dtype=np.float32)
        made[:, 0, :, : self.held] = self.context[:, None]
        made[:, 0, :, self.held :] = np.where(self.seen, np.float32(0), HIDDEN)
        return made

    def within(self, window: int, bias: NDArray[np.float32]) -> NDArray[np.float32]:
        """`bias` as layers have it that see so many positions."""
        if self.positions.max() < window:
            return bias
        # A hole is hidden, whatever its position.
        context = np.cumsum(self.context == 0, axis=1, dtype=np.int64) - 1
        keys = np.concatenate([context, self.positions], axis=1)
        distance = self.positions[:, :, None] - keys[:, None]
        return np.where((distance < window)[:, None], bias, HIDDEN)


class Store(ABC):
    """The rows of b caches on the device, and what runs passes behind them.

    `in_place`: rows at the end are dropped for nothing, and `gather` copies only what it moves;
    otherwise it copies the whole cache.

    That of a model with recurrent state (Capabilities.rewinds) keeps states: that behind no row,
    that of the checkpoint, and of the last pass those behind each row whose logits were asked for,
    behind its last row, and where it began. `run` and `read` are asked for none but these.
    """

    in_place = True

    @abstractmethod
    def run(self, work: Pass) -> Logits:
        """Drop all but the first `work.held` rows of every cache and append the new ones: logits
        [b, r, V]. The next pass may overwrite them if b > 1.

        Recurrent states are taken up behind the first `work.held` rows.
        """

    def hidden_states(self, layers: Layers) -> HiddenStates:
        """The last pass's hidden states of these layers [b, n, D], valid until the next pass.

        Needed where Capabilities.hidden_states are declared.
        """
        raise RuntimeError("this engine shows no hidden states")

    @abstractmethod
    def gather(self, start: int, index: NDArray[np.int64]) -> None:
        """Have every cache hold, behind its first `start` rows, these of the rows behind them and
        no others: int64 [b, m], counted from `start` and ascending.
        """

    @abstractmethod
    def read(self, sequence: int, places: NDArray[np.int64]) -> Arrays:
        """Copies of these rows, int64 [m] ascending, of one cache: [1, heads, m, dim] each.

        Beside them recurrent states, in arrays of any shape: those behind the first m rows, which
        are the rows asked for.
        """

    def checkpoint(self, rows: int) -> None:  # noqa: B027 (attention has no need of any)
        """Go on keeping the recurrent state behind so many rows, in place of an earlier one's."""

    @abstractmethod
    def write(self, arrays: Arrays) -> None:
        """Begin every cache, all of them empty, with what `read` gave.

        Raises RuntimeError for arrays of another model.
        """

    def reserve(self, rows: int) -> None:  # noqa: B027 (most stores need it not)
        """Prepare for so many rows whatever takes long: it is not to happen within a pass."""

    @abstractmethod
    def close(self) -> None:
        """Release the caches."""


class Cache:
    """The KV caches of `sequences` sequences. Not thread-safe."""

    def __init__(self, store: Store, capabilities: Capabilities, sequences: int = 1) -> None:
        self.capabilities = capabilities
        self._store: Store | None = store
        self._in_place = store.in_place
        self._rewinding = REWINDING[capabilities.rewinds]()
        # Of each cached row, 0 if it is context and HIDDEN if it is a hole, or not there yet.
        self._context = np.full((sequences, FIRST_CAPACITY), HIDDEN, dtype=np.float32)
        self._held = 0  # rows in the cache of each sequence, holes included
        self._lengths = [0] * sequences
        self._ends = [0] * sequences  # places behind the last row that is context
        self._pending: list[tuple[int, ...]] = [()] * sequences  # parent links of new rows
        self._asked: Sequence[NewRows] = ()  # what the last pass computed
        self._start = 0  # the place of the first new row
        self._debt = 0  # reads of holes since the last compaction
        self._over: set[int] = set()  # sequences that are closed

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens kept so far, by sequence."""
        return tuple(self._lengths)

    @property
    def held(self) -> int:
        """Rows in the cache of each sequence, holes included."""
        return self._held

    def run(self, asked: Sequence[NewRows]) -> list[Logits]:
        """Run one pass over the new rows of every sequence: of each, logits [rows asked for, V].

        They stay pending, each sequence's, until `keep` or `rewind`. Raises RuntimeError if a
        sequence that takes part has pending rows, or if none takes part; DerbyError for a position
        beyond the model's context.
        """
        store = self._opened()
        n = max(len(new.tokens) for new in asked)
        if n == 0 or any(new.tokens and self._pending[i] for i, new in enumerate(asked)):
            raise RuntimeError("forward before keep, or without tokens")
        self._compact_if_worthwhile()
        work = self._described(asked, n)
        try:
            logits = store.run(work)
        except BaseException:
            if self.capabilities.recurrent:
                self._forget()  # some layers' states may be further on than others'
            raise
        self._rewinding.ran(self._lengths[0], n, asked[0].rows)
        self._start, self._held = self._held, self._held + n
        self._context = _with_room(self._context, self._held)
        self._pending = [tuple(new.parents) for new in asked]
        self._asked = asked
        if len(asked) == 1:
            return [logits[0]]
        places = {int(row): place for place, row in enumerate(work.rows)}
        return [logits[i, [places[row] for row in new.rows]] for i, new in enumerate(asked)]

    def _forget(self) -> None:
        for sequence in range(len(self._lengths)):
            self.rewind(sequence, 0)

    def run_one(self, sequence: int, new: NewRows) -> Logits:
        """Run a pass in which this sequence alone takes part: its logits [rows asked for, V]."""
        asked = [NewRows()] * len(self._lengths)
        asked[sequence] = new
        return self.run(asked)[sequence]

    def _described(self, asked: Sequence[NewRows], n: int) -> Pass:
        trees = [tree_of(tuple(new.parents)) for new in asked]
        for new, tree, length in zip(asked, trees, self._lengths, strict=True):
            self._check(new, tree, length)
        plain = all(tree.chain and len(tree.depths) == n for tree in trees)
        plain = plain and all(length == self._held for length in self._lengths)
        context = self._context[:, : self._held]
        if len(asked) == 1:
            (new,), (tree,) = asked, trees
            tokens, rows = np.array([new.tokens], np.int64), np.array(new.rows, np.int64)
            positions, seen = tree.depths[None] + self._lengths[0], tree.seen[None]
        else:
            tokens, positions, seen = self._side_by_side(asked, trees, n)
            rows = np.unique(np.array([row for new in asked for row in new.rows], dtype=np.int64))
        return Pass(tokens, positions, seen, context, rows, plain)

    def _side_by_side(
        self, asked: Sequence[NewRows], trees: Sequence[Tree], n: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Tokens, positions and `seen` of several sequences, with spare rows for the shorter."""
        b = len(asked)
        tokens = np.zeros((b, n), dtype=np.int64)
        positions = np.repeat(np.array([self._lengths], dtype=np.int64).T, n, axis=1)
        # Every row sees itself, spare ones too: attention over nothing is not a number.
        seen = np.repeat(np.eye(n, dtype=np.bool_)[None], b, axis=0)
        for i, (new, tree) in enumerate(zip(asked, trees, strict=True)):
            count = len(new.tokens)
            tokens[i, :count] = new.tokens
            positions[i, :count] += tree.depths
            seen[i, :count, :count] = tree.seen
        return tokens, positions, seen

    def _check(self, new: NewRows, tree: Tree, length: int) -> None:
        """Raise unless this can be computed behind so many tokens."""
        n, able = len(new.tokens), self.capabilities
        if len(new.parents) != n:
            raise RuntimeError(f"{n} tokens with {len(new.parents)} parent links")
        if not (tree.chain or able.tree):
            raise RuntimeError("this model takes no tree")
        if new.rows and not 0 <= min(new.rows) <= max(new.rows) < n:
            raise RuntimeError(f"rows {tuple(new.rows)} of {n}")
        if n and length + tree.levels > able.max_context:
            raise DerbyError(
                f"The text would be {length + tree.levels} tokens long and this model reads at "
                f"most {able.max_context}: shorten the prompt or ask for fewer new tokens."
            )

    def hidden_states(self, sequence: int, layers: Layers = LAST_LAYER) -> HiddenStates:
        """The last pass's hidden states of this sequence's new rows: a new array [n, D].

        Raises RuntimeError if the engine does not declare `Capabilities.hidden_states`.
        """
        count = len(self._asked[sequence].tokens)
        return self._opened().hidden_states(layers)[sequence, :count].copy()

    def keep(self, sequence: int, rows: Sequence[int]) -> None:
        """Make these pending rows of the sequence part of its context; forget its others.

        Raises RuntimeError if the last of them is one behind which no state was kept.
        """
        self._opened()
        require_path(rows, self._pending[sequence])
        length = self._lengths[sequence] + len(rows)
        if self._rewinding.nearest(length) != length:
            raise RuntimeError(f"keep {len(rows)} rows, behind which there are no logits")
        for row in rows:
            self._context[sequence, self._start + row] = 0
        if rows:
            self._ends[sequence] = self._start + rows[-1] + 1
        self._lengths[sequence] = length
        self._pending[sequence] = ()
        self._rewinding.settled(length)
        self._settle()

    def rewind(self, sequence: int, length: int) -> None:
        """Forget all of this sequence behind its first `length` tokens, and its pending rows.

        Where a text cannot be cut there, more is forgotten: `lengths` says what is kept.
        """
        self._opened()
        kept = self._lengths[sequence]
        if not 0 <= length <= kept:
            raise RuntimeError(f"rewind {kept} tokens to {length}")
        length = self._rewinding.nearest(length)
        if length < kept:
            places = self._places(sequence)
            self._context[sequence, places[length:]] = HIDDEN
            self._ends[sequence] = int(places[length - 1]) + 1 if length else 0
        self._lengths[sequence] = length
        self._pending[sequence] = ()
        self._rewinding.settled(length)
        self._settle()

    def checkpoint(self, sequence: int) -> None:
        """Have a later `rewind` find the text that is kept now, however many passes have run."""
        if self._pending[sequence]:
            raise RuntimeError("checkpoint before keep")
        length = self._lengths[sequence]
        if self.capabilities.recurrent and length:
            self._opened().checkpoint(length)
            self._rewinding.checkpoint = length

    def checkpoints(self, sequence: int) -> tuple[int, ...]:
        """Lengths that are worth exporting, ascending: of the checkpoint, and of what is kept."""
        return tuple(sorted({self._rewinding.checkpoint, self._lengths[sequence]} - {0}))

    def _places(self, sequence: int) -> NDArray[np.int64]:
        """Where the sequence's context lies among its cached rows, int64 [length]."""
        return np.flatnonzero(self._context[sequence, : self._held] == 0)

    def _settle(self) -> None:
        """Once no rows are pending, drop what nobody needs as far as that costs nothing."""
        if any(self._pending):
            return
        if not any(self._lengths):
            self._held = self._debt = 0
        elif self._in_place:
            self._held = max(self._ends)
            if self._ends != self._lengths:
                self._compact(min(self._start, self._held))

    def _compact_if_worthwhile(self) -> None:
        """Rent or buy: once reading holes has cost as much as a copy of the cache, make that."""
        longest = max(self._lengths)
        self._debt += self._held - longest
        if self._debt > COMPACTION_BASE + COMPACTION_PER_ROW * longest and not any(self._pending):
            self._compact(0)

    def compact(self) -> None:
        """Take out the holes that no sequence needs. Changes no logits."""
        if any(self._pending):
            raise RuntimeError("compact before keep")
        self._compact(0)

    def _compact(self, start: int) -> None:
        """Take out the holes behind the first `start` rows that no sequence needs."""
        holes = self._context[:, start : self._held] != 0
        counts = holes.shape[1] - holes.sum(axis=1)
        m = int(counts.max(initial=0))
        # A stable sort puts context first, in its order; shorter sequences end in holes.
        index = np.argsort(holes, axis=1, kind="stable")[:, :m]
        if self._held > start and not (self._in_place and (index == np.arange(m)).all()):
            self._opened().gather(start, index)
        self._context[:, start : self._held] = HIDDEN
        for i, count in enumerate(counts.tolist()):
            self._context[i, start : start + count] = 0
            self._ends[i] = start + count if count else self._ends[i]
        self._held = start + m
        if start == 0:
            self._debt = 0

    def export(self, sequence: int, length: int) -> Arrays:
        """Copies of the KV cache of the sequence's first `length` tokens: [1, heads, length, dim]
        each. Its pending rows must have been settled by `keep`, and the text must be one that can
        be cut there. Changes nothing.
        """
        possible = not self._pending[sequence] and 0 <= length <= self._lengths[sequence]
        if not possible or self._rewinding.nearest(length) != length:
            raise RuntimeError(f"export of {length} of {self._lengths[sequence]} tokens")
        store = self._opened()
        return store.read(sequence, self._places(sequence)[:length]) if length else {}

    def load(self, length: int, arrays: Arrays) -> None:
        """Begin every sequence with what `export(length)` gave; copies it.

        Raises RuntimeError unless all are empty and the arrays are this model's.
        """
        store = self._opened()
        if self._held or any(self._pending) or (length and not arrays):
            raise RuntimeError("load into a cache that is not empty, or of another model")
        if length:
            store.write(arrays)
        self._context = _with_room(self._context, length)
        self._context[:, :length] = 0
        self._held, self._lengths = length, [length] * len(self._lengths)
        self._ends = list(self._lengths)
        self._rewinding.loaded(length)

    def reserve(self, length: int) -> None:
        """Prepare for texts of so many tokens what no pass is to wait for."""
        self._opened().reserve(min(length, self.capabilities.max_context))

    def leave(self, sequence: int) -> None:
        """The sequence is over; the last one to leave closes the cache."""
        self._over.add(sequence)
        if len(self._over) == len(self._lengths):
            self.close()

    def close(self) -> None:
        """Release the caches. Idempotent."""
        if self._store is not None:
            self._store.close()
        self._store = None

    def _opened(self) -> Store:
        if self._store is None:
            raise RuntimeError("the cache is closed")
        return self._store


def _with_room(context: NDArray[np.float32], rows: int) -> NDArray[np.float32]:
    """The same with space for so many rows."""
    more = rows - context.shape[1]
    if more <= 0:
        return context
    space = np.full((len(context), max(more, context.shape[1])), HIDDEN, dtype=np.float32)
    return np.concatenate([context, space], axis=1)
