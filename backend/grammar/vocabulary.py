"""A model's vocabulary as llguidance reads it, in slices that it allows in one go.

A slice is all tokens that match a regular expression. Where a terminal may go on with anything of
that shape, the engine takes the slice's ready-made mask instead of walking its tokens one by one.
It sees so only for one repeated class of characters within another: `[a-z]{1,30}` fits the start of
`[a-z]+([0-9_][a-z0-9_]*)?`, yet not of `[a-z][a-z0-9_]*`, though both are the same names. With
llguidance's own slices, masks of C and SQL take three times as long.
"""

from __future__ import annotations

import re
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backend.errors import DerbyError
from backend.grammar.sources import GrammarSource
from backend.text import ByteTokenizer, HfTokenizer, Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

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
#: For a grammar that is made of words, as programming languages are, and says so. They are not for
#: the others: where tokens are in several slices of which one fits, the engine walks the others.
CODE_SLICES: tuple[str, ...] = (
    "[a-zA-Z][a-zA-Z_]*",
    " [a-zA-Z][a-zA-Z_]*",
    r" [^\x00-\x7F]{1,29}",
)
_CODE = re.compile(r"(?m)^// slices: code$")


def slices_of(source: GrammarSource) -> tuple[str, ...]:
    """The slices that a grammar asks for. They change its masks' speed and nothing else."""
    return CODE_SLICES if source.kind == "lark" and _CODE.search(source.text) else SLICES


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`tokens` is llguidance's own form. Logits have `size` columns, and the first `known` of them
    belong to tokens.
    """

    tokens: LLTokenizer
    size: int
    known: int
    eos_ids: frozenset[int]


class Vocabularies:
    """Builds each tokenizer's vocabulary once (0.1-1 s), while the tokenizer lives; thread-safe."""

    def __init__(self) -> None:
        self._built: weakref.WeakKeyDictionary[Tokenizer, dict[tuple[str, ...], Vocabulary]] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = threading.Lock()

    def get(self, tokenizer: Tokenizer, slices: tuple[str, ...] = SLICES) -> Vocabulary:
        """Raises DerbyError as `build` does."""
        with self._lock:
            built = self._built.setdefault(tokenizer, {})
            if slices not in built:
                built[slices] = build(tokenizer, slices)
            return built[slices]


def build(tokenizer: Tokenizer, slices: tuple[str, ...] = SLICES) -> Vocabulary:
    """Build a tokenizer's vocabulary. Raises DerbyError for one that has no end of the text or does
    not spell texts in bytes.
    """
    from llguidance import LLTokenizer, TokenizerWrapper

    size, eos = tokenizer.vocab_size, sorted(tokenizer.eos_ids)
    if not eos:
        raise _unfit("no end")
    if isinstance(tokenizer, HfTokenizer):
        from llguidance.hf import from_tokenizer

        known = min(size, len(tokenizer.fast))
        try:
            # The logits may be wider than the tokenizer (padding) or, rarely, narrower.
            tokens = from_tokenizer(
                tokenizer.fast, max(size, len(tokenizer.fast)), eos, list(slices)
            )
        except ValueError as error:
            raise _unfit(str(error)[:80]) from error
    elif isinstance(tokenizer, ByteTokenizer):
        tokens = LLTokenizer(TokenizerWrapper(_Bytes()), eos_token=eos, slices=list(slices))
        known = tokens.vocab_size
    else:
        raise _unfit(type(tokenizer).__name__)
    known = min(known, size)
    return Vocabulary(tokens, size, known, frozenset(i for i in eos if i < known))


def _unfit(why: str) -> DerbyError:
    return DerbyError(
        f"This model's tokenizer takes no grammar ({why}): choose another model, or a column "
        "without a grammar."
    )


class _Bytes:
    """The vocabulary of ByteTokenizer, in the form that llguidance's TokenizerWrapper reads."""

    bos_token_id, eos_token_id = None, ByteTokenizer.EOS
    tokens = (*(bytes([i]) for i in range(256)), b"<256>")
    special_token_ids = (ByteTokenizer.EOS,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)
