"""From a grammar's text and a tokenizer to an llguidance matcher."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from backend.constraints.grammar_errors import explain, json_error
from backend.grammars import GrammarSource
from backend.text import ByteTokenizer, HfTokenizer, Tokenizer
from backend.types import DerbyError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

#: At most one space, or a line break and an indent, wherever JSON allows whitespace: a small model
#: that may write one more space for ever will. A schema's own `x-guidance` layout wins.
JSON_WHITESPACE = r" |\n {0,12}"
_LAYOUT_KEYS = {"whitespace_flexible", "whitespace_pattern"}


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Turn a panic in native code, which no `except Exception` catches, into a DerbyError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise DerbyError(
            "The grammar made the grammar engine crash: simplify it or pick one that ships."
        ) from error


_CACHE: weakref.WeakKeyDictionary[Tokenizer, LLTokenizer] = weakref.WeakKeyDictionary()
_CACHE_LOCK = threading.Lock()


def matcher_tokenizer(tokenizer: Tokenizer) -> LLTokenizer:
    """The vocabulary as llguidance wants it, built once a tokenizer object (about 0.1-1 s)."""
    with _CACHE_LOCK:
        built = _CACHE.get(tokenizer)
        if built is None:
            built = _CACHE[tokenizer] = _build_tokenizer(tokenizer)
        return built


def _build_tokenizer(tokenizer: Tokenizer) -> LLTokenizer:
    if isinstance(tokenizer, HfTokenizer):
        from llguidance.hf import from_tokenizer

        # The logits may be wider than the tokenizer (padding) or, rarely, narrower.
        width = max(tokenizer.vocab_size, len(tokenizer.fast))
        return from_tokenizer(tokenizer.fast, n_vocab=width, eos_token=sorted(tokenizer.eos_ids))
    if isinstance(tokenizer, ByteTokenizer):
        from llguidance import LLTokenizer, TokenizerWrapper

        return LLTokenizer(TokenizerWrapper(_Bytes()), eos_token=sorted(tokenizer.eos_ids))
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


def _limits() -> LLParserLimits:
    """Tighter than llguidance's defaults, which trust the grammar; all that ships fits easily."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=1000,
        initial_lexer_fuel=500_000,
        step_lexer_fuel=100_000,
        step_max_items=25_000,
        max_lexer_states=50_000,
        max_grammar_size=100_000,
    )


@panics_as_errors()
def compile_matcher(source: GrammarSource, tokenizer: LLTokenizer) -> LLMatcher:
    """A matcher at the start of a text. Raises DerbyError where the grammar is wrong."""
    from llguidance import LLMatcher

    matcher = LLMatcher(tokenizer, _definition(source), log_level=0, limits=_limits())
    if matcher.is_error():
        raise explain(source, matcher.get_error())
    return matcher


def _definition(source: GrammarSource) -> str:
    """The grammar as llguidance's JSON, so that no text can pass for another format."""
    from llguidance import regex_to_lark

    if source.kind == "lark":
        grammar: dict[str, Any] = {"lark_grammar": source.text}
    elif source.kind == "regex":
        grammar = {"lark_grammar": f"start: /{regex_to_lark(source.text.rstrip(chr(10)))}/"}
    else:
        grammar = {"json_schema": _schema(source)}
    try:
        return json.dumps({"grammars": [grammar]}, allow_nan=False)
    except ValueError as error:
        raise json_error(error) from error


def _schema(source: GrammarSource) -> Any:
    try:
        schema = json.loads(source.text)
    except (ValueError, RecursionError) as error:
        raise json_error(error) from error
    if not isinstance(schema, dict):
        return schema
    layout = schema.get("x-guidance", {})
    if isinstance(layout, dict) and _LAYOUT_KEYS.isdisjoint(layout):
        schema["x-guidance"] = {"whitespace_pattern": JSON_WHITESPACE, **layout}
    return schema
