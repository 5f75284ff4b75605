"""A byte-budgeted cache of compiled grammars.

Compiling takes 0.4-31 ms (a two-field schema, C), copying 5-170 us. A copy shares its original's
lexer, so its first masks are fast; but what the lexer learns adds up, and if one copy exceeds the
lexer's limits all the others fail with it. Hence entries that fail, or have been used a while, go.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLMatcher

#: Copies made of one entry: bounds what its lexer gathers from the texts that they read.
MAX_COPIES = 64
#: Resident bytes a compiled grammar takes, per byte of its JSON form: 20-115 were measured, and up
#: to 140 after a text (a schema full of patterns: 1200; the floor covers what small ones take).
_BYTES_PER_BYTE = 150
_FLOOR = 1 << 20


def estimated_bytes(definition: str) -> int:
    """What a compiled grammar of this JSON form takes, about."""
    return _FLOOR + _BYTES_PER_BYTE * len(definition)


@dataclass(slots=True)
class _Entry:
    pristine: LLMatcher
    size: int
    copies: int = 0


class Compiled:
    """Matchers at the start of a text, by whatever tells grammar and tokenizer; thread-safe."""

    def __init__(self, budget: int) -> None:
        """`budget` in bytes."""
        self._budget = budget
        self._held = 0
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str, build: Callable[[], LLMatcher], size: int) -> LLMatcher:
        """A matcher of the caller's own; `build` makes it unless `key` is held.

        `size` is in bytes, see `estimated_bytes`. What `build` raises passes through. A matcher
        that has failed is given out but not kept.
        """
        if held := self._copy(key):
            return held
        pristine = build()
        if size > self._budget:
            return pristine
        copy = pristine.deep_copy()
        with self._lock:
            self._drop(key)
            if not pristine.is_error():
                self._entries[key] = _Entry(pristine, size, copies=1)
                self._held += size
                while self._held > self._budget:
                    self._drop(next(iter(self._entries)))
        return copy

    def _copy(self, key: str) -> LLMatcher | None:
        """A copy of what is held, None if there is nothing or it is of no more use."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            copy = entry.pristine.deep_copy()
            copy.compute_bitmask()  # asks the shared lexer: that is when its failure shows
            entry.copies += 1
            if copy.is_error() or entry.copies > MAX_COPIES:
                self._drop(key)
                return None
            self._entries.move_to_end(key)
            return copy

    def _drop(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        self._held -= entry.size if entry else 0


#: For who compiles a grammar once.
NOTHING_KEPT = Compiled(0)
