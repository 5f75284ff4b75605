"""A GGUF file's own tokenizer, as llama.cpp runs it, and the file's chat template."""

import codecs
import ctypes as c
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from backend.engines.llamacpp.library import CONTROL, Library, LoadedModel
from backend.errors import DerbyError
from backend.text import Detokenizer, digest, in_template, named_token
from backend.types import Messages, Thinking, Turns

#: llama_token: no such token.
NONE = -1

#: Bytes of the longest token that is expected; a longer one is asked for again.
USUAL_BYTES = 64


class GgufTokenizer:
    """A loaded model's tokenizer, which keeps it loaded. See Tokenizer."""

    def __init__(self, library: Library, model: LoadedModel) -> None:
        self._library, self._model = library, model
        self._vocabulary = library.llama_model_get_vocab(model)
        self.vocab_size: int = library.llama_vocab_n_tokens(self._vocabulary)
        ids = range(self.vocab_size)
        self.eos_ids = frozenset(i for i in ids if library.llama_vocab_is_eog(self._vocabulary, i))
        begin: int = library.llama_vocab_bos(self._vocabulary)
        self.start_id: int | None = min(self.eos_ids, default=None) if begin == NONE else begin
        template: bytes | None = library.llama_model_chat_template(model, None)
        self._template = template.decode(errors="replace") if template else ""

    def encode(
        self, text: str, *, chat: bool, earlier: Turns = (), thinking: Thinking = ""
    ) -> list[int]:
        if not chat:
            return self._tokens(text, add_special=True, parse_special=True)
        rendered = in_template(self._template, self._rendered, text, earlier, thinking)
        return self._tokens(rendered, add_special=False, parse_special=True)

    def _rendered(self, messages: Messages, **options: Any) -> str:
        from transformers.utils.chat_template_utils import render_jinja_template

        texts, _ = render_jinja_template(
            [messages],
            chat_template=self._template,
            add_generation_prompt=True,
            bos_token=self._named(self._library.llama_vocab_bos(self._vocabulary)),
            eos_token=self._named(self._library.llama_vocab_eos(self._vocabulary)),
            **options,
        )
        return texts[0]

    def encode_plain(self, text: str) -> list[int]:
        lead = self._lead
        tokens = self._tokens(f"\n{text}" if lead else text, add_special=False, parse_special=True)
        return tokens[len(lead) :]

    @cached_property
    def _lead(self) -> list[int]:
        """The tokens of a line break, where llama.cpp begins each text with a space: behind one it
        puts none. [] where it puts none anyway.
        """
        alone, line = (
            self._tokens(text, add_special=False, parse_special=False) for text in ("a", "\n")
        )
        spaced = b"".join(self.spelling[token] for token in alone) == b" a"
        return line if spaced else []

    def _tokens(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        written, room = text.encode(), len(text.encode()) + 8
        ids = (c.c_int32 * room)()
        count = self._library.llama_tokenize(
            self._vocabulary, written, len(written), ids, room, add_special, parse_special
        )
        if count < 0:
            raise DerbyError("llama.cpp cannot tokenize this text: shorten it.")
        return list(ids[:count])

    def stream(self) -> Detokenizer:
        return _Stream(self)

    def piece(self, token: int) -> str:
        text = self.spelling[token].decode(errors="replace") if token < self.vocab_size else ""
        return text or self._named(token) or named_token(token)

    def extending(self, token: int) -> list[int]:
        start = self.spelling[token]
        if token in self.special or not start:
            return []
        return [
            i
            for i, text in enumerate(self.spelling)
            if text.startswith(start) and i not in self.special
        ]

    @cached_property
    def special(self) -> frozenset[int]:
        """Ids of control tokens, and of those that end a text."""
        attributes = self._library.llama_vocab_get_attr
        ids = range(self.vocab_size)
        control = (i for i in ids if attributes(self._vocabulary, i) & CONTROL)
        return frozenset(control) | self.eos_ids

    @cached_property
    def spelling(self) -> list[bytes]:
        """The bytes that each token stands for in a text; none for special ones."""
        return [b"" if i in self.special else self._bytes(i) for i in range(self.vocab_size)]

    def _bytes(self, token: int, room: int = USUAL_BYTES) -> bytes:
        buffer, strip, by_name = c.create_string_buffer(room), 0, False
        count: int = self._library.llama_token_to_piece(
            self._vocabulary, token, buffer, room, strip, by_name
        )
        return self._bytes(token, -count) if count < 0 else buffer.raw[:count]

    def _named(self, token: int) -> str:
        """What the file calls a token; "" for one that it has not."""
        if not 0 <= token < self.vocab_size:
            return ""
        return self._library.llama_vocab_get_text(self._vocabulary, token).decode(errors="replace")

    def vocabulary(self) -> Mapping[str, int]:
        """As HfTokenizer has it of the same file, if that is read there."""
        return {self._named(i): i for i in range(self.vocab_size)}

    @cached_property
    def _fingerprint(self) -> str:
        return digest(self.vocabulary())

    @property
    def fingerprint(self) -> str:
        return self._fingerprint


class _Stream:
    def __init__(self, tokenizer: GgufTokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._tokenizer.spelling[token])

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)
