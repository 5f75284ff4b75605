"""KV caches of earlier texts, lent to texts that begin alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.kvcache.sources import NOBODY, Scope

#: By name, [batch, heads, tokens, width]. Empty for an engine that keeps no arrays.
Arrays = Mapping[str, NDArray[Any]]
Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Prefix:
    """What is known of a text's first `length` tokens.

    `arrays` are read-only views, [batch, heads, length, width]. They stay valid after the
    cache has dropped the entry; until they are let go, so does its memory, which no budget counts
    then.
    """

    length: int
    arrays: Arrays


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    scope: Scope
    model: str
    tokens: Tokens
    arrays: Arrays
    bytes: int


class PrefixCache:
    """Entries of at most `budget` bytes in all; the least recently used ones go first.

    What one scope put, no other scope finds, and what NOBODY puts is not kept. The budget is common
    to all. Not thread-safe: one worker owns it.
    """

    def __init__(self, budget: int = 1 << 30) -> None:
        self.budget = budget
        self._entries: list[_Entry] = []  # oldest first

    def put(self, scope: Scope, model: str, tokens: Sequence[int], arrays: Arrays) -> None:
        """Keep the cache of `tokens` as this scope's youngest entry.

        The caller gives `arrays` away: they are kept uncopied and marked read-only, so each should
        own its memory. An entry that `tokens` goes on from is replaced. Where one already begins
        with `tokens`, the youngest such is refreshed and `arrays` are not needed. An entry
        larger than the budget is not kept, and nor is one of no tokens; neither changes anything.
        Raises ValueError if an array is not 4-D with len(tokens) on axis 2.
        """
        key = np.array(tokens, dtype=np.int64)
        for name, array in arrays.items():
            if array.ndim != 4 or array.shape[2] != len(key):
                raise ValueError(f"{name} is {array.shape}; axis 2 of 4 must be {len(key)} tokens.")
        if not len(key) or scope == NOBODY:
            return
        mine = [e for e in self._entries if (e.scope, e.model) == (scope, model)]
        longer = [entry for entry in mine if _begins(entry.tokens, key)]
        if longer:
            self._refresh(longer[-1])
            return
        size = key.nbytes + sum(array.nbytes for array in arrays.values())
        if size > self.budget:
            return
        for array in arrays.values():
            array.setflags(write=False)
        for entry in mine:
            if _begins(key, entry.tokens):
                self._entries.remove(entry)
        self._entries.append(_Entry(scope, model, key, dict(arrays), size))
        while self.bytes > self.budget:
            del self._entries[0]

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
            if common > longest:
                longest, lender = common, entry
        if lender is None:
            return Prefix(0, {})
        self._refresh(lender)
        arrays = {name: array[:, :, :longest] for name, array in lender.arrays.items()}
        return Prefix(longest, arrays)

    def covers(self, scope: Scope, model: str, tokens: Sequence[int]) -> bool:
        """Tell whether this scope has all of `tokens`; then `put` has no need of arrays."""
        key = np.array(tokens, dtype=np.int64)
        return any(
            (entry.scope, entry.model) == (scope, model) and _begins(entry.tokens, key)
            for entry in self._entries
        )

    def texts(self, scope: Scope, model: str) -> list[list[int]]:
        """List the tokens of a scope's entries, the one used last at the end."""
        mine = (e for e in self._entries if (e.scope, e.model) == (scope, model))
        return [entry.tokens.tolist() for entry in mine]

    def forget(self, scope: Scope) -> None:
        """Drop every entry of a scope; what is lent out stays valid."""
        self._entries = [entry for entry in self._entries if entry.scope != scope]

    @property
    def bytes(self) -> int:
        """Bytes of all arrays, and 8 for every token."""
        return sum(entry.bytes for entry in self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def _refresh(self, entry: _Entry) -> None:
        self._entries.remove(entry)
        self._entries.append(entry)


def _begins(text: Tokens, start: Tokens) -> bool:
    return np.array_equal(text[: len(start)], start)


def common_length(a: Tokens, b: Tokens) -> int:
    """Count the tokens that two texts, int64 [n] and [m], share from the start."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    return int(differ.argmax()) if differ.any() else n
