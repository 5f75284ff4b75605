"""KV caches of earlier texts, lent to texts that begin alike."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from backend.kvcache.sources import Scope, Visitor
from backend.types import Arrays

log = logging.getLogger(__name__)

Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Prefix:
    """What is known of a text's first `length` tokens.

    `arrays` are [batch, heads, length, width], or of any shape if they are a whole entry's, not to
    be written to; there are none for an engine that keeps none. They stay valid after the cache has
    dropped the entry; until they are let go, so does their memory, which no budget counts then.
    """

    length: int
    arrays: Arrays


class Held(Protocol):
    """The arrays of one entry, wherever they are."""

    def rows(self, length: int | None) -> Arrays:
        """Those of the first `length` tokens, None: all of them, not to be written to. Raises
        OSError or ValueError if they are lost.
        """
        ...

    def used(self) -> None:
        """Take note that the entry is now the one used last."""
        ...

    def drop(self) -> None:
        """Let go of them; what is lent out stays valid."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A text's cache. `bytes`: of all arrays, and 8 for every token. `whole`: there is recurrent
    state in it, which is that behind the last token: so it serves no text that has only some of its
    tokens.
    """

    scope: Visitor
    model: str
    tokens: Tokens
    bytes: int
    held: Held
    whole: bool = False

    def covers(self, text: Tokens) -> bool:
        """Whether an entry for all of this text would add nothing to it."""
        return _begins(self.tokens, text) and (len(self.tokens) == len(text) or not self.whole)


class Store(Protocol):
    """Where the arrays of entries are."""

    def keep(
        self, scope: Visitor, model: str, tokens: Tokens, arrays: Arrays, *, whole: bool
    ) -> Held:
        """Take over the arrays of an entry. Raises nothing."""
        ...

    def found(self) -> Sequence[Entry]:
        """What there is already, the one used last at the end."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class InMemory:
    """Arrays of this process."""

    _arrays: Arrays

    def rows(self, length: int | None) -> Arrays:
        if length is None:
            return self._arrays
        return {name: array[:, :, :length] for name, array in self._arrays.items()}

    def used(self) -> None: ...

    def drop(self) -> None: ...


class Memory:
    """Keeps arrays as long as this process lives."""

    def keep(
        self, scope: Visitor, model: str, tokens: Tokens, arrays: Arrays, *, whole: bool
    ) -> InMemory:
        for array in arrays.values():
            array.setflags(write=False)
        return InMemory(dict(arrays))

    def found(self) -> Sequence[Entry]:
        return ()


@dataclass(eq=False)
class Visit:
    """A scope from when a run begins until it is forgotten: `over`, then."""

    scope: Scope
    over: bool = False


class PrefixCache:
    """Entries of at most `budget` bytes in all, and of at most `share` bytes of any one scope.

    What a scope puts beyond its share makes its own entries go, and what it puts beyond the budget
    anybody's; the least recently used ones go first. So where the shares of all fit into the
    budget, none loses an entry to another; and whoever puts more takes `share` bytes at most.
    What one scope put, no other scope finds, and what NOBODY puts is not kept. Arrays are in
    `store`, and what is there already is taken over. Not thread-safe: one worker owns it.
    """

    def __init__(
        self,
        budget: int = 1 << 30,
        share: int = 1 << 30,
        store: Store = Memory(),  # noqa: B008 (it has no state)
    ) -> None:
        self.budget = budget
        self.share = share
        self._store = store
        self._entries = list(store.found())  # oldest first
        self._visits: WeakSet[Visit] = WeakSet()
        for scope in {entry.scope for entry in self._entries}:
            self._make_room(scope, 0)

    def put(
        self,
        scope: Scope,
        model: str,
        tokens: Sequence[int],
        arrays: Arrays,
        *,
        whole: bool = False,
    ) -> None:
        """Keep the cache of `tokens` as this scope's youngest entry, `whole` (see Entry) or not.

        The caller gives `arrays` away: they may be kept uncopied and marked read-only, so each
        should own its memory. An entry that `tokens` goes on from is replaced. Where one already
        begins with `tokens`, the youngest such is refreshed and `arrays` are not needed. Whole
        entries replace none, and only equal ones refresh them. An entry larger than the share or
        the budget is not kept, and nor is one of no tokens; neither changes anything.
        Raises ValueError if an array is not 4-D with len(tokens) on axis 2, unless it is whole.
        """
        key = np.array(tokens, dtype=np.int64)
        for name, array in arrays.items():
            if not whole and (array.ndim != 4 or array.shape[2] != len(key)):
                raise ValueError(f"{name} is {array.shape}; axis 2 of 4 must be {len(key)} tokens.")
        if not len(key) or not isinstance(scope, Visitor):
            return
        mine = [e for e in self._entries if (e.scope, e.model) == (scope, model)]
        covering = [entry for entry in mine if entry.covers(key)]
        if covering:
            self._refresh(covering[-1])
            return
        size = key.nbytes + sum(array.nbytes for array in arrays.values())
        if size > min(self.budget, self.share):
            return
        for entry in mine:
            if _begins(key, entry.tokens) and not whole:
                self._drop(entry)
        self._make_room(scope, size)
        held = self._store.keep(scope, model, key, arrays, whole=whole)
        self._entries.append(Entry(scope, model, key, size, held, whole))

    def find(self, scope: Scope, model: str, tokens: Sequence[int]) -> Prefix:
        """Lend the longest prefix of `tokens` that this scope has for this model.

        Of entries equally long in common the youngest is lent, and becomes the youngest of all.
        Length 0 and no arrays if nothing fits.
        """
        key = np.array(tokens, dtype=np.int64)
        longest, lender = 0, None
        for entry in reversed(self._entries):
            if (entry.scope, entry.model) != (scope, model):
                continue
            # Most entries part ways before the longest so far ends: one token tells.
            if min(len(entry.tokens), len(key)) <= longest or entry.tokens[longest] != key[longest]:
                continue
            common = common_length(entry.tokens, key)
            if common > longest and (common == len(entry.tokens) or not entry.whole):
                longest, lender = common, entry
        if lender is None:
            return Prefix(0, {})
        try:
            rows = lender.held.rows(None if lender.whole else longest)
        except (OSError, ValueError):
            log.exception("a prefix of %d tokens is lost", len(lender.tokens))
            self._drop(lender)
            return Prefix(0, {})
        self._refresh(lender)
        return Prefix(longest, rows)

    def covers(self, scope: Scope, model: str, tokens: Sequence[int]) -> bool:
        """Tell whether this scope has all of `tokens`; then `put` has no need of arrays."""
        key = np.array(tokens, dtype=np.int64)
        return any(
            (entry.scope, entry.model) == (scope, model) and entry.covers(key)
            for entry in self._entries
        )

    def texts(self, scope: Scope, model: str) -> list[list[int]]:
        """List the tokens of a scope's entries, the one used last at the end."""
        mine = (e for e in self._entries if (e.scope, e.model) == (scope, model))
        return [entry.tokens.tolist() for entry in mine]

    def visit(self, scope: Scope) -> Visit:
        """What a run holds to know, at its end, whether its scope was forgotten meanwhile."""
        visit = Visit(scope)
        self._visits.add(visit)
        return visit

    def forget(self, scope: Scope) -> None:
        """Drop every entry of a scope and end its visits; what is lent out stays valid."""
        for entry in [entry for entry in self._entries if entry.scope == scope]:
            self._drop(entry)
        for visit in self._visits:
            visit.over = visit.over or visit.scope == scope

    @property
    def bytes(self) -> int:
        """Bytes of all arrays, and 8 for every token."""
        return sum(entry.bytes for entry in self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def _make_room(self, scope: Scope, size: int) -> None:
        """Drop what would be beyond this scope's share and the budget, with `size` bytes more."""
        while sum(e.bytes for e in self._entries if e.scope == scope) > max(0, self.share - size):
            self._drop(next(e for e in self._entries if e.scope == scope))
        while self.bytes > max(0, self.budget - size):
            self._drop(self._entries[0])

    def _refresh(self, entry: Entry) -> None:
        self._entries.remove(entry)
        self._entries.append(entry)
        entry.held.used()

    def _drop(self, entry: Entry) -> None:
        self._entries.remove(entry)
        entry.held.drop()


def _begins(text: Tokens, start: Tokens) -> bool:
    return np.array_equal(text[: len(start)], start)


def common_length(a: Tokens, b: Tokens) -> int:
    """Count the tokens that two texts, int64 [n] and [m], share from the start."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    return int(differ.argmax()) if differ.any() else n
