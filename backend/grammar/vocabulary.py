"""A model's vocabulary as llguidance reads it, in slices that it allows in one go, and matchers.

A slice is all tokens that match a regular expression. Where a terminal may go on with anything of
that shape, the engine takes the slice's ready-made mask instead of walking its tokens one by one.
It sees so only for one repeated class of characters within another: `[a-z]{1,30}` fits the start of
`[a-z]+([0-9_][a-z0-9_]*)?`, yet not of `[a-z][a-z0-9_]*`, though both are the same names. With
llguidance's own slices, masks of C and SQL take three times as long.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from backend.errors import DerbyError
from backend.grammar.sources import GrammarSource
from backend.tokenizer import ByteTokenizer, HfTokenizer, Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

#: Each slice is a part of one above it. Keep it so: where two only overlap, and the smaller fits,
#: the engine walks the rest of the larger. Bounded ones fit bounded terminals too, such as a JSON
#: string with a `maxLength`, until less is left than their own bound.
SLICES: tuple[str, ...] = (
    # In a JSON or C string, or a comment to the end of its line.
    r'[^"\\\x00-\x1F\x7F]+',
    r'[^"\\\x00-\x1F\x7F]{1,30}',
    r'[^"\\\x00-\x1F\x7F]{1,10}',
    # The same where SQL's text, a block comment, a tag or a code fence might end.
    r"""[^"'*<`\\\x00-\x1F\x7F]{1,30}""",
    # Plain prose.
    r"[ A-Za-z0-9,-]{1,30}",
    # A word and the space before it, then a word alone: at the start of a name, and within one.
    r" [A-Za-z]{1,30}",
    r" [a-z]{1,30}",
    r"[A-Za-z0-9_]{1,30}",
    r"[a-z0-9_]{1,30}",
    r"[A-Za-z]{1,30}",
    r"[a-z]{1,30}",
)
#: For a grammar that is made of words, as programming languages are, and says so: its masks take
#: less than half of the time. Not for the others, whose slices would overlap.
CODE_SLICES: tuple[str, ...] = (
    "[a-zA-Z][a-zA-Z_]*",
    " [a-zA-Z][a-zA-Z_]*",
    r" [^\x00-\x7F]{1,29}",
)
_CODE = re.compile(r"(?m)^// slices: code$")
#: What ends a model's thinking; special in some vocabularies.
_CLOSING = re.compile(r"[<\[]/[a-z]*:?think(?:ing)?[>\]]", re.IGNORECASE)


def slices_of(source: GrammarSource) -> tuple[str, ...]:
    """The slices that a grammar asks for. They change its masks' speed and nothing else."""
    return CODE_SLICES if source.kind == "lark" and _CODE.search(source.text) else SLICES


_BUILT: WeakKeyDictionary[Tokenizer, dict[tuple[str, ...], LLTokenizer]] = WeakKeyDictionary()


def vocabulary_of(tokenizer: Tokenizer, slices: tuple[str, ...] = SLICES) -> LLTokenizer:
    """A tokenizer's vocabulary, at least as wide as the logits; built once (0.1-1 s) while the
    tokenizer lives. Raises DerbyError for one without an end, or that does not spell in bytes.
    """
    built = _BUILT.setdefault(tokenizer, {})
    if slices not in built:
        built[slices] = _build(tokenizer).with_slices(list(slices))
    return built[slices]


def _build(tokenizer: Tokenizer) -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

    eos = sorted(tokenizer.eos_ids)
    if not eos:
        raise _unfit("no end")
    if isinstance(tokenizer, ByteTokenizer):
        own = TokenizerWrapper(_Bytes(tokenizer.vocab_size))
        return LLTokenizer(own, eos_token=eos, slices=[])
    if not isinstance(tokenizer, HfTokenizer):
        raise _unfit(type(tokenizer).__name__)

    from llguidance.hf import from_tokenizer

    fast = tokenizer.fast
    try:
        # The logits may be wider than the tokenizer (padding) or, rarely, narrower.
        tokens = from_tokenizer(fast, max(tokenizer.vocab_size, len(fast)), eos, [])
    except ValueError as error:
        raise _unfit(str(error)[:80]) from error
    added = {
        i: token.content.encode()
        for i, token in fast.added_tokens_decoder.items()
        if (not token.special or _CLOSING.fullmatch(token.content)) and i not in eos
    }
    if any(tokens.is_special_token(i) or tokens.decode_bytes([i]) != added[i] for i in added):
        tokens = LLTokenizer(TokenizerWrapper(_Added(tokens, added)), eos_token=eos, slices=[])
    return tokens


def _unfit(why: str) -> DerbyError:
    return DerbyError(
        f"This model's tokenizer takes no grammar ({why}): choose another model, or a column "
        "without a grammar."
    )


class _Added:
    """A vocabulary whose added tokens stand for their text, such as <tool_call>: llguidance takes
    each of the form <...> for special, and allows it nowhere.
    """

    def __init__(self, tokens: LLTokenizer, added: Mapping[int, bytes]) -> None:
        self.bos_token_id, self.eos_token_id = None, tokens.eos_token
        ids = range(tokens.vocab_size)
        self.tokens = [added[i] if i in added else tokens.decode_bytes([i]) for i in ids]
        self.special_token_ids = [i for i in ids if tokens.is_special_token(i) and i not in added]
        self._tokenize = tokens.tokenize_bytes

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenize(text)


class _Bytes:
    """The vocabulary of ByteTokenizer, in the form that llguidance's TokenizerWrapper reads."""

    bos_token_id, eos_token_id = None, ByteTokenizer.EOS

    def __init__(self, size: int) -> None:
        self.special_token_ids = range(ByteTokenizer.EOS, size)
        self.tokens = [bytes([i]) if i < ByteTokenizer.EOS else b"<%d>" % i for i in range(size)]

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def compile_matcher(definition: str, tokens: LLTokenizer) -> LLMatcher:
    """Make a matcher at the start of a text, with llguidance's own limits or wider ones. Ask it
    whether it has failed: it never raises.
    """
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(
        max_items_in_row=10_000,
        step_max_items=100_000,
        # For one mask, in up to 1.5 s, and for all tokens up to the next one: without fuel a lexer
        # refuses them, and for ever, and says so only at that mask.
        step_lexer_fuel=20_000_000,
        verbose_errors=False,
    )
    return LLMatcher(tokens, definition, log_level=0, limits=limits)
