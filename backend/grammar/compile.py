"""From a grammar's text and a tokenizer to an llguidance matcher."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from backend.errors import DerbyError
from backend.grammar.compiled import NOTHING_KEPT, Compiled, estimated_bytes
from backend.grammar.gbnf.convert import gbnf_to_lark
from backend.grammar.guard import guarded
from backend.grammar.lark.linking import link
from backend.grammar.lark.text import regex_literal
from backend.grammar.messages import Part, explain, json_error
from backend.grammar.slices import SLICES
from backend.grammar.sources import GrammarSource, shipped
from backend.text import ByteTokenizer, HfTokenizer, Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

#: At most one space, or a line break and an indent, wherever JSON allows whitespace: a small model
#: that may write one more space for ever will. A schema's own `x-guidance` layout wins.
JSON_WHITESPACE = r" |\n {0,12}"
_LAYOUT_KEYS = {"whitespace_flexible", "whitespace_pattern"}

_Slices = tuple[str, ...]
_CACHE: weakref.WeakKeyDictionary[Tokenizer, dict[_Slices, LLTokenizer]] = (
    weakref.WeakKeyDictionary()
)
_CACHE_LOCK = threading.Lock()


def matcher_tokenizer(tokenizer: Tokenizer, slices: _Slices = SLICES) -> LLTokenizer:
    """The vocabulary as llguidance wants it, built once a tokenizer object (about 0.1-1 s)."""
    with _CACHE_LOCK:
        built = _CACHE.setdefault(tokenizer, {})
        if slices not in built:
            built[slices] = _build_tokenizer(tokenizer, slices)
        return built[slices]


def _build_tokenizer(tokenizer: Tokenizer, slices: _Slices) -> LLTokenizer:
    if isinstance(tokenizer, HfTokenizer):
        from llguidance.hf import from_tokenizer

        # The logits may be wider than the tokenizer (padding) or, rarely, narrower.
        width = max(tokenizer.vocab_size, len(tokenizer.fast))
        return from_tokenizer(
            tokenizer.fast,
            n_vocab=width,
            eos_token=sorted(tokenizer.eos_ids),
            slices=list(slices),
        )
    if isinstance(tokenizer, ByteTokenizer):
        from llguidance import LLTokenizer, TokenizerWrapper

        eos = sorted(tokenizer.eos_ids)
        return LLTokenizer(TokenizerWrapper(_Bytes()), eos_token=eos, slices=list(slices))
    raise DerbyError(
        f"A grammar cannot constrain the tokenizer {type(tokenizer).__name__}: "
        "choose a model with a fast tokenizer."
    )


class _Bytes:
    """The byte alphabet in the shape that llguidance's TokenizerWrapper reads."""

    eos_token_id = ByteTokenizer.EOS
    bos_token_id = None
    special_token_ids = (ByteTokenizer.EOS,)
    tokens = (*(bytes([i]) for i in range(256)), b"<eos>")

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


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


@guarded()
def compile_matcher(
    source: GrammarSource, tokenizer: LLTokenizer, kept: Compiled = NOTHING_KEPT
) -> LLMatcher:
    """A matcher at the start of a text, from `kept` if it is there: one tokenizer's only.

    Raises DerbyError where the grammar is wrong.
    """
    from llguidance import LLMatcher

    parts = parts_of(source)
    made = definition(parts)

    def build() -> LLMatcher:
        return LLMatcher(tokenizer, made, log_level=0, limits=limits())

    matcher = kept.get(made, build, estimated_bytes(made))
    if matcher.is_error():
        raise explain(source, matcher.get_error(), parts)
    return matcher


@lru_cache(maxsize=64)
def parts_of(source: GrammarSource) -> tuple[Part, ...]:
    """The grammar and all that it imports, its own files before those that ship.

    Raises DerbyError with file, line and column where they do not fit together.
    """
    own = {module.name: module for module in source.modules}
    return link(source, (shipped() | own).get, _other_than_lark)


def definition(parts: Sequence[Part]) -> str:
    """Linked parts as llguidance's JSON, so that no text can pass for another format."""
    return json.dumps({"grammars": [part.grammar for part in parts]})


def _other_than_lark(source: GrammarSource, called: str) -> dict[str, Any]:
    """What llguidance takes for a grammar that errors call `called`."""
    match source.kind:
        case "gbnf":
            return {"lark_grammar": gbnf_to_lark(source.text, called)}
        case "regex":
            pattern = source.text.rstrip("\n")
            return {"lark_grammar": f"start: {regex_literal(pattern)}"}
        case _:
            return {"json_schema": _schema(source, called)}


def _schema(source: GrammarSource, called: str) -> Any:
    try:
        schema = json.loads(source.text)
        json.dumps(schema, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise json_error(error, called) from error
    if not isinstance(schema, dict):
        return schema
    layout = schema.get("x-guidance", {})
    if isinstance(layout, dict) and _LAYOUT_KEYS.isdisjoint(layout):
        schema["x-guidance"] = {"whitespace_pattern": JSON_WHITESPACE, **layout}
    return schema
