"""Matchers: grammars compiled by llguidance, and a byte-budgeted cache of them.

Compiling takes 0.4-31 ms (a two-field schema, C), copying 5-170 us. A copy shares its original's
lexer, so its first masks are fast; but what the lexer learns adds up, and if one copy exceeds the
lexer's limits all the others fail with it. Hence entries that fail, or have been used a while, go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backend.grammar.definition import definition_of, parts_of
from backend.grammar.messages import explain
from backend.grammar.sources import GrammarSource

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

#: Copies made of one entry: bounds what its lexer gathers from the texts that they read.
MAX_COPIES = 64
#: Resident bytes a compiled grammar takes, per byte of its JSON form: 20-115 were measured, and up
#: to 140 after a text (a schema full of patterns: 1200; the floor covers what small ones take).
_BYTES_PER_BYTE = 150
_FLOOR = 1 << 20


def limits() -> LLParserLimits:
    """Tighter than llguidance's defaults, which trust the grammar; all that ships fits easily."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=1000,
        initial_lexer_fuel=500_000,
        step_lexer_fuel=100_000,
        step_max_items=100_000,
        max_lexer_states=50_000,
        max_grammar_size=100_000,
    )


def compile_matcher(
    source: GrammarSource,
    tokens: LLTokenizer,
    cache: MatcherCache | None = None,
    definition: str = "",
) -> LLMatcher:
    """Make a matcher at the start of a text, from `cache` if it is there: one vocabulary's only.

    `definition` is what the sandbox made of an untrusted grammar; without it `source` is linked
    here. Raises DerbyError where the grammar is wrong. Native code runs: see NativeCalls.
    """
    from llguidance import LLMatcher

    written = definition or definition_of(source)

    def build() -> LLMatcher:
        return LLMatcher(tokens, written, log_level=0, limits=limits())

    matcher = cache.get(written, build, estimated_bytes(written)) if cache else build()
    if matcher.is_error():
        raise explain(source, matcher.get_error(), () if definition else parts_of(source))
    return matcher


def estimated_bytes(definition: str) -> int:
    """Estimate what a compiled grammar of this JSON form takes in memory."""
    return _FLOOR + _BYTES_PER_BYTE * len(definition)


@dataclass(slots=True)
class _Entry:
    pristine: LLMatcher
    size: int
    copies: int = 1


class MatcherCache:
    """Matchers at the start of a text, by whatever tells grammar and vocabulary: for one thread."""

    def __init__(self, budget: int) -> None:
        """`budget` in bytes."""
        self._budget = budget
        #: The latest is the last one.
        self._entries: dict[str, _Entry] = {}

    def get(self, key: str, build: Callable[[], LLMatcher], size: int) -> LLMatcher:
        """Give a matcher of the caller's own; `build` makes it unless `key` is held.

        `size` is in bytes, see `estimated_bytes`. What `build` raises passes through. A matcher
        that has failed is given out but not kept.
        """
        entry = self._entries.pop(key, None)
        if entry and entry.copies < MAX_COPIES:
            copy = entry.pristine.deep_copy()
            copy.compute_bitmask()  # asks the shared lexer: that is when its failure shows
            entry.copies += 1
            if not copy.is_error():
                self._entries[key] = entry
                return copy
        pristine = build()
        if pristine.is_error() or size > self._budget:
            return pristine
        self._entries[key] = _Entry(pristine, size)
        while sum(each.size for each in self._entries.values()) > self._budget:
            del self._entries[next(iter(self._entries))]
        return pristine.deep_copy()
