"""Text to tokens and back: the Tokenizer seam, chat templates, streaming in whole characters."""

import codecs
import itertools
import json
import re
import threading
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from backend.errors import DerbyError
from backend.types import Messages, Request, Thinking, Turns, chat_messages, template_options

#: What is asked to see what a chat template makes of a question: it stands in none.
PROBE = "zqxjkv"


class Detokenizer:
    """Turns one sequence's tokens into text as they come; `read` gives the bytes of the next. Bytes
    that are no text become replacement characters at once, and at most three wait to become one.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that this token completes."""
        return self._decoder.decode(self._read(token))

    @property
    def whole(self) -> bool:
        """Whether no bytes wait."""
        return not self._decoder.getstate()[0]

    def flush(self) -> str:
        """The bytes that wait, as replacement characters."""
        return self._decoder.decode(b"", final=True)


class Tokenizer(ABC):
    """`eos_ids`: every token that ends a text. `start_id`: what stands before a text that nothing
    precedes, the token that begins a text, else one that ends one; None if there is neither.
    `notes`: what to know of how its model reads and ends, a clause each.
    """

    vocab_size: int
    eos_ids: frozenset[int]
    start_id: int | None
    notes: tuple[str, ...] = ()

    def encode(
        self, text: str, *, chat: bool, earlier: Turns = (), thinking: Thinking = ""
    ) -> list[int]:
        """Token ids of `text`, begun once as the tokenizer begins a text; if `chat`, as the user's
        turn in the model's chat template, behind the `earlier` ones, which lets the model think
        first or not, see Request. Raises DerbyError if there is no template, it refuses that, it
        leaves the text out, or it writes the same whether the model is to think or not.
        """
        if not chat:
            return self._begun(text)
        messages = chat_messages(earlier, text)
        try:
            rendered = self._rendered(messages, **template_options(thinking))
            lost = PROBE not in self._rendered(chat_messages(earlier, PROBE))
            other: Thinking = "off" if thinking == "on" else "on"
            same = thinking and rendered == self._rendered(messages, **template_options(other))
        except DerbyError:
            raise
        except Exception as error:  # a template is a program of the model's makers
            raise DerbyError(
                f"The model's chat template refuses this prompt ({error!s:.200}): switch the "
                "template off (--raw)."
            ) from error
        if lost:
            raise DerbyError(
                "The model's chat template leaves the prompt out: switch it off (--raw)."
            )
        if same:
            raise DerbyError("This model has no thinking to switch: leave it as it is.")
        return self._bare(rendered)

    @abstractmethod
    def _begun(self, text: str) -> list[int]:
        """Token ids of a text as the tokenizer begins one."""

    @abstractmethod
    def _bare(self, text: str) -> list[int]:
        """Token ids of a text, without any that the tokenizer adds."""

    @abstractmethod
    def _rendered(self, messages: Messages, **options: bool) -> str:
        """A chat up to the assistant's turn. Raises DerbyError if there is no template, and what
        that raises.
        """

    @abstractmethod
    def encode_plain(self, text: str) -> list[int]:
        """Token ids of `text` in the middle of another: no template, nothing added, no space."""

    @abstractmethod
    def stream(self) -> Detokenizer:
        """For tokens behind a text: a space that they begin with is shown."""

    @abstractmethod
    def piece(self, token: int) -> str:
        """One token's own text, never "": bytes that are no whole character as replacement
        characters, a special token by its name.
        """

    @abstractmethod
    def extending(self, token: int) -> list[int]:
        """Ids of the tokens whose text begins with that of `token`, itself among them; none for a
        special token.
        """

    @abstractmethod
    def special(self, token: int) -> str:
        """The name of a token that is no text but may be a stop string; "" for all others."""

    @abstractmethod
    def vocabulary(self) -> Mapping[str, int]:
        """Every token's id."""

    @cached_property
    def fingerprint(self) -> str:
        """64 bits in hexadecimal: equal ones mean equal vocabularies."""
        entries = json.dumps(self.vocabulary(), sort_keys=True)
        return sha256(entries.encode()).hexdigest()[:16]

    @property
    def facts(self) -> dict[str, Any]:
        """What a race tells of it when a column starts: see Started."""
        ends, notes = sorted(self.eos_ids), list(self.notes)
        return {"tokenizer": self.fingerprint, "ends": ends, "notes": notes}


def prompt_tokens(tokenizer: Tokenizer, request: Request) -> list[int]:
    """What every column of a request reads before it answers. Raises DerbyError: see `encode`."""
    return tokenizer.encode(
        request.text, chat=request.chat, earlier=request.earlier, thinking=request.thinking
    )


def positions_for(prompt: int, request: Request, max_context: int, scratch: int) -> int:
    """How many tokens prompt and answer may have together: all that the context holds but for
    `scratch`. Raises DerbyError if the prompt leaves no room for one.
    """
    positions = min(request.context or max_context, max_context) - scratch
    if (over := prompt + 1 - positions) > 0:
        instead = ", or remove Lookahead, which needs room beyond the text" if scratch else ""
        raise DerbyError(
            f"The prompt has {prompt:,} tokens and the context holds {positions:,}: shorten it by "
            f"about {-(-over // 10) * 10:,} tokens{instead}."
        )
    return positions


class HfTokenizer(Tokenizer):
    """A fast tokenizer saved in a model folder. Texts are encoded whole and without pads, whatever
    truncation and padding its file has.
    """

    def __init__(self, folder: Path, eos_ids: frozenset[int], vocab_size: int) -> None:
        self.fast = _load(folder)
        self.vocab_size = vocab_size
        self._backend = self.fast.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        added = self._backend.get_added_tokens_decoder()
        self._added = frozenset(added)
        self._special = {i: token.content for i, token in added.items() if token.special}
        self._texts: dict[int, str] = {}
        begin, end = self.fast.bos_token_id, self.fast.eos_token_id
        more = ({*self._template_ends(), end} - {None}) - eos_ids
        self.eos_ids = eos_ids | more
        self.start_id = min(self.eos_ids, default=None) if begin is None else begin
        if eos_ids and more:
            names = " and ".join(self.piece(token) for token in sorted(more))
            self.notes = (f"{names} ends its text too, as its tokenizer or chat template says",)

    def _begun(self, text: str) -> list[int]:
        ids = list(self._backend.encode(text, add_special_tokens=True).ids)
        if ids[:2] == [self.fast.bos_token_id] * 2:
            return ids[len(ids) > len(self._bare(text)) :]
        return ids

    def _bare(self, text: str) -> list[int]:
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def _rendered(self, messages: Messages, **options: bool) -> str:
        if not self.fast.chat_template:
            raise DerbyError("This model has no chat template: switch the template off (--raw).")
        return self.fast.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **options
        )

    def _template_ends(self) -> Iterable[int]:
        """The special token that the chat template puts behind an answer."""
        with suppress(Exception):  # a template may refuse anything
            chat = chat_messages(((PROBE, PROBE),), "")[:-1]
            text = str(self.fast.apply_chat_template(chat, tokenize=False))
            if text.count(PROBE) == 2:
                return self._special.keys() & self._bare(text.rpartition(PROBE)[2].strip())[:1]
        return ()

    def encode_plain(self, text: str) -> list[int]:
        return list(self._middle.encode(text, add_special_tokens=False).ids)

    @cached_property
    def _middle(self) -> Any:
        """The same tokenizer, but a text gets no space in front."""
        parts = {name: getattr(self._backend, name) for name in ("normalizer", "pre_tokenizer")}
        steps = {name: part and json.loads(part.__getstate__()) for name, part in parts.items()}
        spaceless = {name: _without_space(step) for name, step in steps.items()}
        if spaceless == steps:
            return self._backend
        return type(self._backend).from_str(
            json.dumps(json.loads(self._backend.to_str()) | spaceless)
        )

    def decode(self, tokens: Sequence[int], *, special: bool) -> str:
        """The text of tokens; that of special ones is their names, if asked for."""
        return self._backend.decode(tokens, skip_special_tokens=not special)

    def stream(self) -> Detokenizer:
        before = self._letter  # the last token that had text: decoders look at what stands before

        def read(token: int) -> bytes:
            nonlocal before
            start = self.decode(before, special=False)
            text = self.decode([*before, token], special=False)[len(start) :]
            if "\ufffd" in text:
                return self._octets(token) or text.encode()
            before = [token] if text else before
            return text.encode()

        return Detokenizer(read)

    def _octets(self, token: int) -> bytes:
        """The bytes that name a token, as SentencePiece and byte-level tokenizers name those that
        are no text; b"": no bytes do.
        """
        name = self.fast.convert_ids_to_tokens(token)
        if octet := re.fullmatch(r"<0x([0-9A-F]{2})>", name):
            return bytes([int(octet[1], 16)])
        return bytes(self._bytes[c] for c in name) if self._bytes.keys() >= set(name) else b""

    @cached_property
    def _bytes(self) -> dict[str, int]:
        """What each character of a byte-level vocabulary's names stands for."""
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        return {character: byte for byte, character in bytes_to_unicode().items()}

    def piece(self, token: int) -> str:
        """See Tokenizer. Each token's is read once."""
        if token not in self._texts:
            # Alone, a token of some tokenizers loses the space that it begins with.
            before = self.decode(self._letter, special=True)
            text = self.decode([*self._letter, token], special=True)[len(before) :]
            self._texts[token] = text or f"<{token}>"
        return self._texts[token]

    @cached_property
    def _letter(self) -> list[int]:
        return self.encode_plain("a")

    def extending(self, token: int) -> list[int]:
        if token in self._added:
            return []
        start = self.fast.convert_ids_to_tokens(token)
        first = bisect_left(self._pieces, (start, 0))
        pairs = itertools.takewhile(lambda pair: pair[0].startswith(start), self._pieces[first:])
        return [i for _, i in pairs]

    @cached_property
    def _pieces(self) -> list[tuple[str, int]]:
        """Every token but the added ones as the vocabulary writes it, sorted; the order of a
        token's bytes is that of its characters there.
        """
        ids = range(min(self.vocab_size, len(self.fast)))
        named = zip(self.fast.convert_ids_to_tokens(list(ids)), ids, strict=True)
        return sorted((piece, i) for piece, i in named if piece and i not in self._added)

    def special(self, token: int) -> str:
        return self._special.get(token, "")

    def vocabulary(self) -> Mapping[str, int]:
        return self.fast.get_vocab()


def _without_space(step: dict[str, Any] | None) -> dict[str, Any] | None:
    """A step of a tokenizer, as tokenizer.json states it, that puts no space in front of a text."""
    match step:
        case {"type": "Prepend"}:
            return None
        case {"type": "Metaspace"}:
            return step | {"prepend_scheme": "never"}
        case {"type": "ByteLevel", "add_prefix_space": True}:
            return step | {"add_prefix_space": False}
        case {"type": "Sequence"}:
            steps = {name: each for name, each in step.items() if isinstance(each, list)}
            rest = {n: [*filter(None, map(_without_space, each))] for n, each in steps.items()}
            return step | rest
    return step


#: transformers imports its parts when they are first named: threads that name one at the same time
#: find it missing (ImportError).
_LOADING = threading.Lock()


def _load(folder: Path) -> Any:
    """The tokenizer that tokenizer.json describes, whatever class is named beside it. Raises
    DerbyError if there is none, or it cannot be read.
    """
    why = "" if (folder / "tokenizer.json").is_file() else "there is no tokenizer.json"
    fast: Any = None
    if not why:
        with _LOADING:
            from transformers import PreTrainedTokenizerFast

            try:
                fast = PreTrainedTokenizerFast.from_pretrained(folder, trust_remote_code=False)
            except Exception as error:  # whatever its makers wrote
                why = f"{' '.join(f'{type(error).__name__}: {error}'.split()):.100}"
    if why:
        raise DerbyError(
            f"The tokenizer of {folder.name!r} cannot be read ({why}): fetch tokenizer.json and "
            "tokenizer_config.json, or choose another model."
        )
    return fast


class ByteTokenizer(Tokenizer):
    """One token a UTF-8 byte, 256 ends the text: an alphabet that needs no files."""

    EOS = 256

    def __init__(self, vocab_size: int = 257) -> None:
        self.vocab_size = vocab_size
        self.eos_ids = frozenset({self.EOS})
        self.start_id = self.EOS

    def _rendered(self, messages: Messages, **_: bool) -> str:
        names = {"user": "User", "assistant": "Answer"}
        turns = (f"{names[each['role']]}: {each['content']}\n" for each in messages)
        return "".join(turns) + "Answer: "

    def encode_plain(self, text: str) -> list[int]:
        return list(text.encode())

    _begun = _bare = encode_plain

    def stream(self) -> Detokenizer:
        return Detokenizer(lambda token: bytes([token] if token < 256 else []))

    def piece(self, token: int) -> str:
        if token < 256:
            return bytes([token]).decode(errors="replace")
        return self.special(token) or f"<{token}>"

    def extending(self, token: int) -> list[int]:
        return [token] if token < 256 else []

    def special(self, token: int) -> str:
        return "<eos>" if token == self.EOS else ""

    def vocabulary(self) -> Mapping[str, int]:
        return {str(i): i for i in range(self.vocab_size)}


def require_same_vocabulary(target: Tokenizer, draft: Tokenizer, draft_name: str) -> None:
    """Raise DerbyError unless every id is the same token in both. Which tokens begin and end a text
    may differ: a draft is only asked for logits, and the target's roles rule.
    """
    if target.fingerprint != draft.fingerprint:
        raise DerbyError(
            f"The draft {draft_name} has another vocabulary than the target: choose another draft."
        )
