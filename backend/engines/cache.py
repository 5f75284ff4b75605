"""One text and its KV cache, whatever an engine computes it with.

The cache is a list of rows, to which every pass appends. Rejected rows and those that a cut forgets
stay as holes that later masks hide, until taking them out costs less than reading past them.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from backend.engines.tree import Tree, require_path, tree_of
from backend.errors import check_range
from backend.types import LAST_LAYER, Arrays, Capabilities, HiddenStates, Layers, Logits

#: A compaction costs about as much as this many reads of a hole by one forward pass, plus as many
#: per cached row.
COMPACTION_BASE = 4000
COMPACTION_PER_ROW = 14

#: Added to the attention score of what must not be seen.
HIDDEN = np.float32(np.finfo(np.float32).min)

#: Rows for which a new cache has a bias ready.
FIRST_CAPACITY = 1024


class Pass(NamedTuple):
    """One pass over n new rows behind P cached ones. Nobody may write to it.

    tokens, positions: int64 [n]; seen: bool [n, n], which new rows each new row sees; context:
    float32 [P], 0 for cached rows that are context and HIDDEN for holes; rows: int64 [r], the new
    rows whose logits are wanted. `plain`: there are no holes and each new row sees all before it,
    as any causal model has it without a mask.
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
        return len(self.context)

    def bias(self) -> NDArray[np.float32]:
        """What is added to scores, float32 [1, 1, n, P + n]: 0 visible, HIDDEN hidden."""
        n = len(self.tokens)
        made = np.empty((1, 1, n, self.held + n), dtype=np.float32)
        made[:, :, :, : self.held] = self.context
        made[:, :, :, self.held :] = np.where(self.seen, np.float32(0), HIDDEN)
        return made

    def within(self, window: int, bias: NDArray[np.float32]) -> NDArray[np.float32]:
        """`bias` as layers have it that see so many positions."""
        if self.positions.max() < window:
            return bias
        # A hole is hidden, whatever its position.
        context = np.cumsum(self.context == 0, dtype=np.int64) - 1
        keys = np.concatenate([context, self.positions])
        return np.where(self.positions[:, None] - keys < window, bias, HIDDEN)


class Store(ABC):
    """The rows of a cache on the device, and what runs passes behind them.

    `in_place`: rows at the end are dropped for nothing, and `gather` copies only what it moves;
    otherwise it copies the whole cache.
    """

    in_place = True

    @abstractmethod
    def run(self, work: Pass) -> Logits:
        """Drop all but the first `work.held` rows and append the new ones: logits [r, V]."""

    def hidden_states(self, layers: Layers) -> HiddenStates:
        """The last pass's hidden states of these layers [n, D], valid until the next pass.

        Needed where Capabilities.hidden_states are declared.
        """
        raise RuntimeError("no hidden states")

    @abstractmethod
    def gather(self, start: int, index: NDArray[np.int64]) -> None:
        """Hold, behind the first `start` rows, these of the rows behind them and no others:
        int64 [m], counted from `start` and ascending.
        """

    @abstractmethod
    def read(self, places: NDArray[np.int64]) -> Arrays:
        """Copies of these rows, int64 [m] ascending: [1, heads, m, dim] each."""

    @abstractmethod
    def write(self, arrays: Arrays) -> None:
        """Begin the empty cache with what `read` gave.

        Raises RuntimeError for arrays of another model.
        """

    def reserve(self, rows: int) -> None:  # noqa: B027 (most stores need it not)
        """Prepare for so many rows whatever takes long: it is not to happen within a pass."""

    def release_reserve(self) -> None:  # noqa: B027 (likewise)
        """Give back what `reserve` prepared and no pass used."""

    @abstractmethod
    def close(self) -> None:
        """Release the cache."""


class Session:
    """One text and its cache. Not thread-safe. `tokens`: those kept so far."""

    def __init__(self, store: Store, capabilities: Capabilities) -> None:
        self._capabilities = capabilities
        self._store: Store | None = store
        self._in_place = store.in_place
        # Of each cached row, 0 if it is context and HIDDEN if it is a hole, or not there yet.
        self._context = np.full(FIRST_CAPACITY, HIDDEN, dtype=np.float32)
        self._held = 0  # rows in the cache, holes included
        self.most = 0  # rows that it ever held: its memory does not shrink
        self.tokens: list[int] = []
        self._computed: Sequence[int] = ()  # tokens of the last pass
        self._end = 0  # the place behind the last row that is context
        self._pending: tuple[int, ...] = ()  # parent links of new rows
        self._start = 0  # the place of the first new row
        self._debt = 0  # reads of holes since the last compaction

    @property
    def length(self) -> int:
        """Tokens kept so far: the logical context length."""
        return len(self.tokens)

    @property
    def held(self) -> int:
        """Rows in the cache, holes included."""
        return self._held

    def forward(self, tokens: Sequence[int], parents: Sequence[int], rows: Sequence[int]) -> Logits:
        """Run one forward pass over n new tokens and return float32 logits [len(rows), V].

        `parents[i] < i` is the index of token i's parent among the new tokens, -1 for the kept
        context; a token sees the context, its ancestors and itself, at position
        length + its depth below the context. `rows` are the indices whose logits are wanted, in
        that order; () computes none. The new rows stay pending until `keep` says which
        of them become context; a second forward before that raises RuntimeError. Raises DerbyError
        for a position beyond the model's context.
        """
        store, n = self._opened(), len(tokens)
        if n == 0 or self._pending:
            raise RuntimeError("forward before keep")
        tree = tree_of(tuple(parents))
        self._check(n, tree, parents, rows)
        self._compact_if_worthwhile()
        work = Pass(
            np.array(tokens, np.int64),
            tree.depths + self.length,
            tree.seen,
            self._context[: self._held],
            np.array(rows, np.int64),
            tree.chain and self.length == self._held,
        )
        logits = store.run(work)
        self._start, self._held = self._held, self._held + n
        self.most = max(self.most, self._held)
        self._context = _with_room(self._context, self._held)
        self._pending, self._computed = tuple(parents), tokens
        return logits

    def _check(self, n: int, tree: Tree, parents: Sequence[int], rows: Sequence[int]) -> None:
        """Raise unless this can be computed behind what is kept."""
        able = self._capabilities
        if len(parents) != n:
            raise RuntimeError(f"{n} tokens, {len(parents)} parents")
        if able.one_token and not tree.chain:
            raise RuntimeError("takes no tree")
        if rows and not 0 <= min(rows) <= max(rows) < n:
            raise RuntimeError(f"rows {tuple(rows)} of {n}")
        check_range("length in tokens", self.length + tree.levels, 1, able.max_context)

    def hidden_states(self, layers: Layers = LAST_LAYER) -> HiddenStates:
        """The last forward pass's hidden states of these layers, one row a token: a new array.

        The last layer's are what the output projection reads. Raises RuntimeError if the engine
        does not declare `Capabilities.hidden_states`, or nobody opened a draft that reads these.
        """
        return self._opened().hidden_states(layers).copy()

    def keep(self, rows: Sequence[int]) -> None:
        """Make these pending rows (a path from the context down, ascending) part of the context.

        The other pending rows are forgotten. Cheap: no copy of the cache.
        """
        self._opened()
        require_path(rows, self._pending)
        for row in rows:
            self._context[self._start + row] = 0
        if rows:
            self._end = self._start + rows[-1] + 1
        self.tokens += [self._computed[row] for row in rows]
        self._pending = ()
        self._settle()

    def truncate(self, length: int) -> None:
        """Forget everything after the first `length` kept tokens, and any pending rows; all of the
        text if that is computed one token at a time: `length` says how much is left.
        """
        self._opened()
        if not 0 <= length <= self.length:
            raise RuntimeError(f"truncate to {length}")
        if self._capabilities.one_token and length < self.length:
            length = 0
        if length < self.length:
            places = self._places()
            self._context[places[length:]] = HIDDEN
            self._end = int(places[length - 1]) + 1 if length else 0
        del self.tokens[length:]
        self._pending = ()
        self._settle()

    def _places(self) -> NDArray[np.int64]:
        """Where the context lies among the cached rows, int64 [length]."""
        return np.flatnonzero(self._context[: self._held] == 0)

    def _settle(self) -> None:
        """Now that no rows are pending, drop what nobody needs as far as that costs nothing."""
        if not self.length:
            self._held = self._debt = 0
        elif self._in_place:
            self._held = self._end
            if self._end != self.length:
                self._compact(min(self._start, self._held))

    def _compact_if_worthwhile(self) -> None:
        """Rent or buy: once reading holes has cost as much as a copy of the cache, make that."""
        self._debt += self._held - self.length
        if self._debt > COMPACTION_BASE + COMPACTION_PER_ROW * self.length:
            self._compact(0)

    def compact(self) -> None:
        """Take out the holes. Changes no logits."""
        if self._pending:
            raise RuntimeError("compact before keep")
        self._compact(0)

    def _compact(self, start: int) -> None:
        """Take out the holes behind the first `start` rows."""
        index = np.flatnonzero(self._context[start : self._held] == 0)
        m = len(index)
        if self._held > start and not (self._in_place and (index == np.arange(m)).all()):
            self._opened().gather(start, index)
        self._context[start : start + m] = 0
        self._context[start + m : self._held] = HIDDEN
        self._held = start + m
        self._end = self._held if m else self._end
        if start == 0:
            self._debt = 0

    def export(self, length: int) -> Arrays:
        """Copies of the KV cache of the first `length` kept tokens: [1, heads, length, dim] each.

        Pending rows must have been settled by `keep`. Changes nothing.
        """
        if self._pending or not 0 <= length <= self.length:
            raise RuntimeError(f"export of {length}")
        return self._opened().read(self._places()[:length]) if length else {}

    def load(self, tokens: Sequence[int], arrays: Arrays) -> None:
        """Make these tokens, whose `export` gave the arrays, the context of this empty session.

        Raises RuntimeError if the session is not empty, or the arrays are not this model's.
        """
        store, length = self._opened(), len(tokens)
        if self._held or self._pending or (length and not arrays):
            raise RuntimeError("session not empty")
        if length:
            store.write(arrays)
        self._context = _with_room(self._context, length)
        self._context[:length] = 0
        self.tokens = list(tokens)
        self._held = self._end = self.most = length

    def reserve(self, length: int) -> None:
        """Prepare for a text of so many tokens what no pass is to wait for."""
        self._opened().reserve(min(length, self._capabilities.max_context))

    def release_reserve(self) -> None:
        """Give back what was prepared and not used."""
        self._opened().release_reserve()

    def close(self) -> None:
        """Release the cache. Idempotent."""
        if self._store is not None:
            self._store.close()
        self._store = None

    def _opened(self) -> Store:
        if self._store is None:
            raise RuntimeError("session closed")
        return self._store


def _with_room(context: NDArray[np.float32], rows: int) -> NDArray[np.float32]:
    """The same with space for so many rows."""
    more = rows - len(context)
    if more <= 0:
        return context
    space = np.full(max(more, len(context)), HIDDEN, dtype=np.float32)
    return np.concatenate([context, space])
