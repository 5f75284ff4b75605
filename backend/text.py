"""Text to tokens and back: the Tokenizer seam, chat templates, streaming in whole characters."""

import itertools
import json
import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from backend.errors import DerbyError
from backend.types import (
    Messages,
    Request,
    Thinking,
    Turns,
    chat_messages,
    template_options,
)

#: Tokenizer classes that add nothing to tokenizer.json.
PLAIN_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")

#: Files that hold a vocabulary where there is no tokenizer.json.
VOCABULARIES = ("tokenizer.model", "vocab.json", "vocab.txt")


class Detokenizer(Protocol):
    """Turns one sequence's tokens into text as they come."""

    def push(self, token: int) -> str:
        """The text that this token completes; "" while a character is still incomplete."""
        ...

    def flush(self) -> str:
        """What incomplete bytes remain, as replacement characters."""
        ...


class Tokenizer(Protocol):
    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every token id that ends a text."""
        ...

    @property
    def start_id(self) -> int | None:
        """What stands before a text that nothing precedes: the token that begins a text, else one
        that ends one; None if the vocabulary has neither.
        """
        ...

    def encode(
        self, text: str, *, chat: bool, earlier: Turns = (), thinking: Thinking = ""
    ) -> list[int]:
        """Token ids of `text`; if `chat`, as the user's turn in the model's chat template, behind
        the `earlier` ones, which lets the model think first or not, see Request. Raises DerbyError
        if there is no template, or it refuses that.
        """
        ...

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of `text` in the middle of another: no template, nothing added, no space."""
        ...

    def stream(self) -> Detokenizer:
        """For tokens behind a text: a space that they begin with is shown."""
        ...

    def piece(self, token: int) -> str:
        """One token's own text, never "": bytes that are no whole character as replacement
        characters, a special token by its name.
        """
        ...

    def extending(self, token: int) -> list[int]:
        """Ids of the tokens whose text begins with that of `token`, itself among them; none for a
        special token.
        """
        ...

    def vocabulary(self) -> Mapping[str, int]:
        """Every token's id."""
        ...

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints mean equal vocabularies."""
        ...


class Render(Protocol):
    """A chat template: a chat as text, by what it may ask for by name."""

    def __call__(self, messages: Messages, **options: bool) -> str: ...


def in_template(
    template: str | None, render: Render, text: str, earlier: Turns = (), thinking: Thinking = ""
) -> str:
    """`text` as the user's turn in a chat template, behind the `earlier` ones. Raises DerbyError if
    there is none, or it refuses that, or writes the same whether the model is to think or not.
    """
    if not template:
        raise DerbyError("This model has no chat template: switch the template off.")
    messages = chat_messages(earlier, text)
    try:
        if not thinking:
            return render(messages)
        on, off = (render(messages, **template_options(each)) for each in ("on", "off"))
    except Exception as error:  # a template is a program of the model's makers
        raise DerbyError(
            f"The model's chat template refuses this prompt ({error!s:.200}): switch the template "
            "off."
        ) from error
    if on == off:
        raise DerbyError("This model has no thinking to switch: leave it as it is.")
    return on if thinking == "on" else off


def takes_chats(tokenizer: Tokenizer) -> bool:
    """Whether the model has a chat template that takes a question."""
    try:
        tokenizer.encode("a", chat=True)
    except DerbyError:
        return False
    return True


def prompt_tokens(tokenizer: Tokenizer, request: Request) -> list[int]:
    """What every column of a request reads before it answers. Raises DerbyError: see `encode`."""
    return tokenizer.encode(
        request.prompt, chat=request.chat, earlier=request.earlier, thinking=request.thinking
    )


def require_fits(prompt: int, context: int, scratch_depth: int = 0) -> None:
    """Raise DerbyError unless a prompt of so many tokens leaves room for one more in a context that
    holds `context`; `scratch_depth` of them are for lookahead.
    """
    room = context - scratch_depth
    over = prompt + 1 - room
    if over > 0:
        raise DerbyError(
            f"The prompt has {prompt:,} tokens and the context holds {room:,}: shorten it by about "
            f"{-(-over // 10) * 10:,} tokens."
        )


class HfTokenizer:
    """A fast tokenizer saved in a model folder."""

    def __init__(self, folder: Path, eos_ids: frozenset[int], vocab_size: int) -> None:
        self.fast = _load(folder)
        own = self.fast.eos_token_id
        self.eos_ids = eos_ids | (frozenset() if own is None else {own})
        self.vocab_size = vocab_size
        begin = self.fast.bos_token_id
        self.start_id: int | None = min(self.eos_ids, default=None) if begin is None else begin
        self._texts: dict[int, str] = {}

    def encode(
        self, text: str, *, chat: bool, earlier: Turns = (), thinking: Thinking = ""
    ) -> list[int]:
        if not chat:
            return list(self.fast.encode(text, add_special_tokens=True))
        rendered = in_template(self.fast.chat_template, self._rendered, text, earlier, thinking)
        return list(self.fast.encode(rendered, add_special_tokens=False))

    def _rendered(self, messages: Messages, **options: bool) -> str:
        return self.fast.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **options
        )

    def encode_plain(self, text: str) -> list[int]:
        return list(self._middle.encode(text, add_special_tokens=False).ids)

    @cached_property
    def _middle(self) -> Any:
        """The same tokenizer, but a text gets no space in front."""
        raw = self.fast.backend_tokenizer
        parts = {name: getattr(raw, name) for name in ("normalizer", "pre_tokenizer")}
        stated = {name: part and json.loads(part.__getstate__()) for name, part in parts.items()}
        changed = {name: _without_space(part) for name, part in stated.items()}
        if changed == stated:
            return raw
        return type(raw).from_str(json.dumps(json.loads(raw.to_str()) | changed))

    def stream(self) -> Detokenizer:
        return _HfDetokenizer(self.fast, self._letter)

    def piece(self, token: int) -> str:
        """See Tokenizer. Each token's is read once."""
        if token not in self._texts:
            # Alone, a token of some tokenizers loses the space that it begins with.
            before = self._decode(self._letter)
            text = self._decode([*self._letter, token])[len(before) :]
            self._texts[token] = text or named_token(token)
        return self._texts[token]

    def _decode(self, tokens: Sequence[int]) -> str:
        return self.fast.backend_tokenizer.decode(tokens, skip_special_tokens=False)

    @cached_property
    def _letter(self) -> list[int]:
        return self.encode_plain("a")

    def extending(self, token: int) -> list[int]:
        if token in self._special:
            return []
        start = self.fast.convert_ids_to_tokens(token)
        first = bisect_left(self._pieces, (start, 0))
        found = itertools.takewhile(lambda pair: pair[0].startswith(start), self._pieces[first:])
        return [i for _, i in found]

    @cached_property
    def _special(self) -> frozenset[int]:
        return frozenset(self.fast.added_tokens_decoder)

    @cached_property
    def _pieces(self) -> list[tuple[str, int]]:
        """Every token but the special ones as the vocabulary writes it, sorted; the order of a
        token's bytes is that of its characters there.
        """
        ids = range(min(self.vocab_size, len(self.fast)))
        named = zip(self.fast.convert_ids_to_tokens(list(ids)), ids, strict=True)
        return sorted((piece, i) for piece, i in named if piece and i not in self._special)

    def vocabulary(self) -> Mapping[str, int]:
        return self.fast.get_vocab()

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return digest(self.vocabulary())


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
            kept = {n: [*filter(None, map(_without_space, each))] for n, each in steps.items()}
            return step | kept
    return step


#: transformers imports its parts when they are first named: threads that name one at the same time
#: find it missing (ImportError).
_LOADING = threading.Lock()


def _load(folder: Path) -> Any:
    """The tokenizer of a model folder, without the seconds that AutoTokenizer takes to import
    where tokenizer.json says all there is to know. Raises DerbyError if there is none to be had.
    """
    with _LOADING:
        return _loaded(folder)


def _loaded(folder: Path) -> Any:
    stored = (folder / "tokenizer.json").is_file()
    if not stored and not any((folder / file).is_file() for file in VOCABULARIES):
        raise _unread(folder, "there is none")
    settings = folder / "tokenizer_config.json"
    named = json.loads(settings.read_text()).get("tokenizer_class") if settings.is_file() else None
    if stored and named in PLAIN_CLASSES:
        return _as_stored(folder)
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    # The class that is stated, or the architecture's usual one, may replace what is stored.
    with suppress(Exception):
        fast: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        if isinstance(fast, PreTrainedTokenizerFast) and _reads_as_stored(fast, folder):
            return fast
    if stored:
        return _as_stored(folder)
    raise _unread(folder, "no fast one")


def _as_stored(folder: Path) -> Any:
    """The tokenizer that tokenizer.json describes. Raises DerbyError if it describes none."""
    from transformers import PreTrainedTokenizerFast

    try:
        return PreTrainedTokenizerFast.from_pretrained(folder)
    except Exception as error:  # whatever its makers wrote
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise _unread(folder, f"{said:.100}") from error


def _unread(folder: Path, why: str) -> DerbyError:
    return DerbyError(
        f"The tokenizer of {folder.name!r} cannot be read ({why}): fetch tokenizer.json and "
        "tokenizer_config.json, or choose another model."
    )


def _reads_as_stored(fast: Any, folder: Path) -> bool:
    """Whether a tokenizer makes tokens of a text, and a text of these, as tokenizer.json does."""
    from tokenizers import Tokenizer as Stored

    path = folder / "tokenizer.json"
    if not path.is_file():
        return True
    stored, found = Stored.from_file(str(path)), fast.backend_tokenizer

    def alike(text: str) -> bool:
        ids = stored.encode(text, add_special_tokens=False).ids
        same = ids == found.encode(text, add_special_tokens=False).ids
        return same and stored.decode(ids) == found.decode(ids)

    return alike("A word, two\n  words: 3.14") and alike(" a")


class _HfDetokenizer:
    """Behind the tokens `before`, because decoders drop the space that a text begins with."""

    def __init__(self, fast: Any, before: Sequence[int]) -> None:
        self._fast = fast
        self._tokens = list(before)
        self._stream = self._new_stream(self._tokens)
        self._emitted = len(self._decoded())

    def _new_stream(self, tokens: Sequence[int]) -> Any:
        """The library's, behind these tokens."""
        from tokenizers.decoders import DecodeStream

        return DecodeStream(ids=list(tokens), skip_special_tokens=True)

    def _decoded(self) -> str:
        return self._fast.backend_tokenizer.decode(self._tokens, skip_special_tokens=True)

    def push(self, token: int) -> str:
        self._tokens.append(token)
        try:
            piece = self._stream.step(self._fast.backend_tokenizer, token) or ""
        except Exception:  # bytes that are no character change what was decoded before them
            piece = self._decoded()[self._emitted :].rstrip("\ufffd")
            self._stream = self._new_stream([token])
        self._emitted += len(piece)
        return piece

    def flush(self) -> str:
        text = self._decoded()
        rest = text[self._emitted :]
        self._emitted = len(text)
        return rest


class ByteTokenizer:
    """One token a UTF-8 byte, 256 ends the text: an alphabet that needs no files."""

    EOS = 256

    def __init__(self, vocab_size: int = 257) -> None:
        self.vocab_size = vocab_size
        self.eos_ids = frozenset({self.EOS})
        self.start_id: int | None = self.EOS

    def encode(
        self, text: str, *, chat: bool, earlier: Turns = (), thinking: Thinking = ""
    ) -> list[int]:
        if not chat:
            return self.encode_plain(text)
        return self.encode_plain(in_template("a", self._rendered, text, earlier, thinking))

    def _rendered(self, messages: Messages, **_: bool) -> str:
        names = {"user": "User", "assistant": "Answer"}
        said = "".join(f"{names[each['role']]}: {each['content']}\n" for each in messages)
        return f"{said}Answer: "

    def encode_plain(self, text: str) -> list[int]:
        return list(text.encode())

    def stream(self) -> Detokenizer:
        return _ByteDetokenizer()

    def piece(self, token: int) -> str:
        if token < 256:
            return bytes([token]).decode(errors="replace")
        return "<eos>" if token == self.EOS else named_token(token)

    def extending(self, token: int) -> list[int]:
        return [token] if token < 256 else []

    def vocabulary(self) -> Mapping[str, int]:
        return {str(i): i for i in range(self.vocab_size)}

    @property
    def fingerprint(self) -> str:
        return digest(self.vocabulary())


class _ByteDetokenizer:
    def __init__(self) -> None:
        import codecs

        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(bytes([token])) if token < 256 else ""

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class StopStrings:
    """Ends a text at whichever string is complete first, holding back what might become one.

    `push` returns the text that may be shown now; `hit` is True once a stop string was seen, and
    nothing from its first character on is ever returned.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.hit = False

    def push(self, text: str) -> str:
        if self.hit:
            return ""
        self._held += text
        found = [(i + len(s), i) for s in self._stops if (i := self._held.find(s)) >= 0]
        if found:
            # The one complete first, as if the text came one character at a time: where it ends
            # must not depend on how it was cut into tokens.
            self.hit = True
            _, start = min(found)
            shown, self._held = self._held[:start], ""
            return shown
        keep = max((_overlap(self._held, s) for s in self._stops), default=0)
        shown = self._held[: len(self._held) - keep]
        self._held = self._held[len(shown) :]
        return shown

    def flush(self) -> str:
        rest, self._held = ("" if self.hit else self._held), ""
        return rest


class TextStream:
    """One answer's tokens as text that may be shown: whole characters, stop strings withheld."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], skip: int = 0) -> None:
        """Stop strings are not looked for in the first `skip` characters."""
        self._detokenizer = tokenizer.stream()
        self._stops = StopStrings(stops)
        self._skip = skip
        self.shown = ""  # all that was returned so far

    @property
    def stopped(self) -> bool:
        return self._stops.hit

    def push(self, token: int) -> str:
        piece = self._detokenizer.push(token)
        head, tail = piece[: self._skip], piece[self._skip :]
        self._skip -= len(head)
        return self._show(head + self._stops.push(tail))

    def flush(self) -> str:
        """The rest, bytes of an incomplete character as replacement characters."""
        return self._show(self._stops.push(self._detokenizer.flush()) + self._stops.flush())

    def flush_whole(self) -> str:
        """The rest without an incomplete character."""
        return self._show(self._stops.flush())

    def _show(self, text: str) -> str:
        self.shown += text
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper prefix of `stop` that `text` ends with."""
    return next((n for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n])), 0)


def named_token(token: int) -> str:
    """What a token is called that has neither text nor name."""
    return f"<{token}>"


def digest(vocabulary: Mapping[str, int]) -> str:
    """64 bits of a vocabulary in hexadecimal, whatever order its entries come in."""
    return sha256(json.dumps(vocabulary, sort_keys=True).encode()).hexdigest()[:16]


def require_same_vocabulary(target: Tokenizer, draft: Tokenizer, draft_name: str) -> None:
    """Raise DerbyError unless every id is the same token in both. Which tokens begin and end a text
    may differ: a draft is only asked for logits, and the target's roles rule.
    """
    if target.fingerprint != draft.fingerprint:
        raise DerbyError(
            f"The draft {draft_name} has another vocabulary than the target: choose another draft."
        )
