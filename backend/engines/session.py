"""One text and its KV cache: what every engine's session does, and what a pass over a tree sees."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from backend.errors import check_range
from backend.types import Arrays, Guesses, HiddenStates, Layers, Logits, chain_parents

#: Added to the attention score of what must not be seen.
HIDDEN = np.float32(np.finfo(np.float32).min)


class Tree(NamedTuple):
    """n tokens that hang from one another or from the context. Its arrays are read-only."""

    chain: bool  # each follows the one before it
    depths: NDArray[np.int64]  # [n], 0 for those that hang from the context
    levels: int
    seen: NDArray[np.bool_]  # [n, n]: each token sees itself and its ancestors


@lru_cache(maxsize=128)  # most passes have the shape of an earlier one
def tree_of(parents: tuple[int, ...]) -> Tree:
    """The tree of these parent links, -1 for the context.

    Raises RuntimeError unless parents come before their children.
    """
    n = len(parents)
    depths, seen = np.zeros(n, np.int64), np.eye(n, dtype=np.bool_)
    for i, parent in enumerate(parents):
        if not -1 <= parent < i:
            raise RuntimeError(f"token {i}, parent {parent}")
        if parent >= 0:
            depths[i] = depths[parent] + 1
            seen[i] |= seen[parent]
    seen.setflags(write=False)
    depths.setflags(write=False)
    return Tree(parents == chain_parents(n), depths, int(depths.max(initial=-1)) + 1, seen)


def visibility(
    context: NDArray[np.bool_], tree: Tree, positions: NDArray[np.int64], window: int = 0
) -> NDArray[np.bool_]:
    """Which rows each of n new rows sees, bool [n, P + n]: of P cached ones those in `context`, of
    the new ones its ancestors and itself; with a `window` those of the last so many positions.

    `positions` int64 [n] are the new rows'; those in `context` stand at 0, 1, 2, ...
    """
    n, cached = len(positions), len(context)
    visible = np.empty((n, cached + n), np.bool_)
    visible[:, :cached] = context
    visible[:, cached:] = tree.seen
    if window and positions.max() >= window:
        keys = np.concatenate([np.cumsum(context) - 1, positions])
        visible &= positions[:, None] - keys < window
    return visible


class Session(ABC):
    """A text, `tokens`, and the rows of its cache. Not thread-safe.

    Each engine has one such class, which runs a pass in `forward` and keeps, drops, saves and loads
    rows of its cache in the other abstract methods; what is asked of them was checked before.
    """

    def __init__(self, max_context: int, guesses: Guesses = "trees") -> None:
        self.tokens: list[int] = []
        self._max_context, self._guesses = max_context, guesses
        self._new: tuple[int, ...] = ()  # tokens of the last pass, until `keep` or `truncate`
        self._parents: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        """Tokens kept so far."""
        return len(self.tokens)

    @abstractmethod
    def forward(self, tokens: Sequence[int], parents: Sequence[int], rows: Sequence[int]) -> Logits:
        """Run one forward pass over n new tokens and return float32 logits [len(rows), V].

        `parents[i] < i` is the index of token i's parent among the new tokens, -1 for the kept
        context; a token sees the context, its ancestors and itself, at position
        length + its depth below the context. `rows` are the indices whose logits are wanted, in
        that order; () computes none. The new rows stay pending until `keep` says which of them
        become context. Raises DerbyError for a position beyond the model's context, RuntimeError
        where the pass before was not settled, or a tree is more than its model's `guesses`.
        """

    def keep(self, rows: Sequence[int]) -> None:
        """Make these rows of the last pass (a path from the context down) part of the context; the
        others are forgotten. Raises RuntimeError for what is no path.
        """
        above = -1
        for row in rows:
            if not 0 <= row < len(self._parents) or self._parents[row] != above:
                raise RuntimeError(f"not a path: {list(rows)}")
            above = row
        self._keep(rows)
        self.tokens += [self._new[row] for row in rows]
        self._new = self._parents = ()

    def truncate(self, length: int) -> None:
        """Forget everything after the first `length` kept tokens, and any pending rows. A session
        whose state cannot be cut back forgets all: `length` says how much is left.
        """
        if not 0 <= length <= self.length:
            raise RuntimeError(f"truncate to {length}")
        if self._new:
            self._keep(())
            self._new = self._parents = ()
        if length < self.length:
            self._cut(length)
            del self.tokens[length:]

    def hidden_states(self, layers: Layers) -> HiddenStates:
        """The last pass's hidden states of these layers, beside one another in a row a token:
        float32 [n, D], an array of its own. Raises RuntimeError for layers that the session was not
        opened for.
        """
        raise RuntimeError(f"no hidden states {layers}")

    def save(self, length: int) -> Arrays:
        """Copies of the cache of the first `length` kept tokens; no rows may be pending."""
        if self._new or not 0 <= length <= self.length:
            raise RuntimeError(f"{length} of {self.length} tokens, {len(self._new)} pending")
        return self._save(length) if length else {}

    def load(self, tokens: Sequence[int], arrays: Arrays) -> None:
        """Have this empty session hold these tokens, whose `save` gave the arrays. Raises
        RuntimeError if it is not empty, or the arrays are not this model's.
        """
        if self.tokens or self._new:
            raise RuntimeError("session not empty")
        if tokens:
            self._load(len(tokens), arrays)
            self.tokens = list(tokens)

    @abstractmethod
    def close(self) -> None:
        """Release the cache. Idempotent; no pass runs afterwards."""

    @abstractmethod
    def _keep(self, rows: Sequence[int]) -> None:
        """Have the cache hold, of the last pass's rows, these alone."""

    @abstractmethod
    def _cut(self, length: int) -> None:
        """Have the cache hold the rows of the first `length` tokens alone."""

    def _save(self, length: int) -> Arrays:
        """The first `length` rows, at least one; of a session that cannot: RuntimeError."""
        raise RuntimeError("has no rows")

    def _load(self, length: int, arrays: Arrays) -> None:
        """Have the empty cache hold these rows, at least one. Raises RuntimeError for others'."""
        raise RuntimeError("has no rows")

    def _tree(self, tokens: Sequence[int], parents: Sequence[int], rows: Sequence[int]) -> Tree:
        """The tree of a new pass, if it can be run now."""
        n, tree = len(tokens), tree_of(tuple(parents))
        if n == 0 or n != len(parents) or self._new:
            raise RuntimeError(f"{n} tokens, {len(parents)} parents, {len(self._new)} pending")
        if rows and not 0 <= min(rows) <= max(rows) < n:
            raise RuntimeError(f"rows {tuple(rows)} of {n}")
        if not tree.chain and self._guesses != "trees":
            raise RuntimeError("takes no tree")
        check_range("length in tokens", self.length + tree.levels, 1, self._max_context)
        return tree

    def _pending(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        """A pass over these has run."""
        self._new, self._parents = tuple(tokens), tuple(parents)
