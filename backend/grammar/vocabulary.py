"""A model's vocabulary as llguidance reads it."""

from __future__ import annotations

import copy
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backend.errors import DerbyError
from backend.grammar.slices import SLICES
from backend.text import ByteTokenizer, HfTokenizer, SpellingTokenizer, Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`tokens` is llguidance's own form. Logits have `size` columns, and the first `known` of them
    belong to tokens. If `eos_ids` is empty, no token ends a text.
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
        """Raises DerbyError for a tokenizer that does not spell texts in bytes."""
        with self._lock:
            built = self._built.setdefault(tokenizer, {})
            if slices not in built:
                built[slices] = build(tokenizer, slices)
            return built[slices]


def build(tokenizer: Tokenizer, slices: tuple[str, ...] = SLICES) -> Vocabulary:
    """Build a tokenizer's vocabulary. Raises DerbyError if it does not spell texts in bytes."""
    tokens = read(portable(tokenizer), slices)
    known = tokenizer.vocab_size
    if isinstance(tokenizer, HfTokenizer):
        known = min(known, len(tokenizer.fast))
    eos = frozenset(i for i in tokens.eos_tokens if i < known)
    return Vocabulary(tokens, tokenizer.vocab_size, min(known, tokens.vocab_size), eos)


def portable(tokenizer: Tokenizer) -> dict[str, Any]:
    """What `read` makes the vocabulary from, in this process or another, as JSON.

    Raises DerbyError for a tokenizer without a tokenizer.json.
    """
    if isinstance(tokenizer, ByteTokenizer):
        return {"eos": sorted(tokenizer.eos_ids)}
    if isinstance(tokenizer, SpellingTokenizer):
        spelling = [token.hex() for token in tokenizer.spelling]
        special = sorted(tokenizer.special)
        return {"spelling": spelling, "special": special, "eos": sorted(tokenizer.eos_ids)}
    if not isinstance(tokenizer, HfTokenizer):
        raise DerbyError(
            f"A grammar cannot constrain the tokenizer {type(tokenizer).__name__}: "
            "choose a model with a fast tokenizer."
        )
    fast = copy.copy(tokenizer.fast.backend_tokenizer)
    fast.no_padding()
    fast.no_truncation()
    _spell_metaspace(fast)
    eos = sorted(i for i in tokenizer.eos_ids if fast.id_to_token(i) is not None)
    if not eos:
        # llguidance must have one. Its id is beyond all that the model's tokenizer has.
        end = "<|end|>"
        while fast.token_to_id(end) is not None:
            end += ">"
        fast.add_special_tokens([end])
        eos = [fast.token_to_id(end)]
    return {
        "hf": fast.to_str(),
        "width": max(tokenizer.vocab_size, len(tokenizer.fast), 1 + max(eos)),
        "eos": eos,
    }


def _spell_metaspace(fast: Any) -> None:
    """Say, in the form that llguidance reads, what SentencePiece's sign for a space means. Mutates
    the tokenizer: pass a copy.
    """
    from tokenizers import decoders

    if isinstance(fast.decoder, decoders.Metaspace):
        space = decoders.Replace(fast.decoder.replacement, " ")
        fast.decoder = decoders.Sequence([space, decoders.ByteFallback(), decoders.Fuse()])


def read(written: dict[str, Any], slices: tuple[str, ...]) -> LLTokenizer:
    """Build what `portable` describes. Raises DerbyError for texts not spelled in bytes."""
    from llguidance import LLTokenizer, TokenizerWrapper

    if "hf" not in written:
        eos = written["eos"]
        if "spelling" in written:
            spelled = _Spelled(written["spelling"], written["special"], eos)
            return LLTokenizer(TokenizerWrapper(spelled), eos_token=eos, slices=list(slices))
        return LLTokenizer(TokenizerWrapper(_Bytes()), eos_token=eos, slices=list(slices))
    try:
        # The logits may be wider than the tokenizer (padding) or, rarely, narrower.
        return LLTokenizer(
            written["hf"], n_vocab=written["width"], eos_token=written["eos"], slices=list(slices)
        )
    except ValueError as error:
        raise DerbyError(
            f"A grammar cannot constrain this model, whose tokenizer does not say which bytes a "
            f"token stands for ({str(error)[:80]}): choose one with a byte-level or byte-fallback "
            "tokenizer, or a column without a grammar."
        ) from error


class _Bytes:
    """The byte alphabet in the shape that llguidance's TokenizerWrapper reads."""

    eos_token_id = ByteTokenizer.EOS
    bos_token_id = None
    special_token_ids = (ByteTokenizer.EOS,)
    tokens = (*(bytes([i]) for i in range(256)), b"<eos>")

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


class _Spelled:
    """A vocabulary given by the bytes of its tokens, in the same form. A text is spelled by the
    longest token each time, because the spelling of the model's own tokenizer is not known here.
    """

    bos_token_id = None

    def __init__(self, spelling: list[str], special: list[int], eos: list[int]) -> None:
        named = {i: f"<{i}>".encode() for i in special}
        self.tokens = [named.get(i) or bytes.fromhex(token) for i, token in enumerate(spelling)]
        self.special_token_ids = special
        self.eos_token_id = eos[0]
        self._ids = {token: i for i, token in enumerate(self.tokens) if token and i not in named}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: bytes) -> list[int]:
        found, at = list[int](), 0
        while at < len(text):
            ends = range(min(len(text), at + self._longest), at, -1)
            end = next((end for end in ends if text[at:end] in self._ids), 0)
            if end:
                found.append(self._ids[text[at:end]])
            at = end or at + 1
        return found
