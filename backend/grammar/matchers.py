"""Compiles grammars by llguidance, within limits that hold for every grammar."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


def compile_matcher(definition: str, tokens: LLTokenizer) -> LLMatcher:
    """Make a matcher at the start of a text. Ask it whether it has failed: it never raises.

    The limits are tighter than llguidance's defaults, which trust the grammar; all that ships fits
    easily. Native code runs: see NativeCalls.
    """
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(
        max_items_in_row=1000,
        initial_lexer_fuel=500_000,
        step_lexer_fuel=100_000,
        step_max_items=100_000,
        max_lexer_states=50_000,
        max_grammar_size=100_000,
    )
    return LLMatcher(tokens, definition, log_level=0, limits=limits)
