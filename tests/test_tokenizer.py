"""Tokens are read in whole characters; tokenizers of all kinds spell a text alike alone and in the
middle of another; chat templates open the assistant's turn.
"""

import json
from itertools import takewhile
from pathlib import Path

import families
import pytest
from chat_model import CHATML, END, PAD, VOCABULARY
from chat_model import tokenizer as chat_tokenizer
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_tokenizer import sentencepiece_like, small_tokenizer

from backend.errors import DerbyError
from backend.grammar.constraint import closing_tag
from backend.tokenizer import (
    ByteTokenizer,
    HfTokenizer,
    Tokenizer,
    require_same_vocabulary,
)
from backend.types import Request

SAMPLES = (
    "plain words, 12345 digits\tand\ttabs\r\nand lines\n\n  indented",
    "emoji 👩‍👩‍👧‍👦 👍🏽 🇩🇪 next to each other 🙂🙃",
    "漢字とひらがな, 한국어, ไทย, العربية, עברית",
    "combining e\u0301 a\u0308o\u0308 and nbsp\u00a0here, half a line\u2028done",
    "def f(x):\n    return {'a': [x ** 2 for _ in range(3)]}  # ünïcödé",
)


@given(st.binary())
def test_bytes_that_are_no_text_are_shown_as_python_replaces_them(data: bytes) -> None:
    pieces, rest = streamed(ByteTokenizer(), [*data, ByteTokenizer.EOS])
    assert "".join(pieces) + rest == data.decode("utf-8", "replace")


class Reordered(ByteTokenizer):
    def vocabulary(self) -> dict[str, int]:
        return {str(i): 256 - i for i in range(257)}


def test_a_draft_must_have_the_targets_vocabulary() -> None:
    require_same_vocabulary(ByteTokenizer(), ByteTokenizer(), "the draft")
    for draft in (ByteTokenizer(300), Reordered()):
        with pytest.raises(DerbyError, match="my-draft has another vocabulary"):
            require_same_vocabulary(ByteTokenizer(), draft, "my-draft")


@pytest.fixture(scope="module")
def built_in() -> HfTokenizer:
    from backend.models.files import model_files

    files = model_files("built-in", lambda text: None)
    return HfTokenizer(files.folder, files.eos_ids, files.vocab_size)


def streamed(tokenizer: Tokenizer, tokens: list[int]) -> tuple[list[str], str]:
    stream = tokenizer.stream()
    pieces = [stream.push(token) for token in tokens]
    whole, rest = stream.whole, stream.flush()
    assert whole == (not rest)
    return pieces, rest


@pytest.mark.model
@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_any_tokens_stream_as_they_decode(built_in: HfTokenizer, data: st.DataObject) -> None:
    """A model may write any tokens, bytes that are no text among them."""
    ids = st.one_of(st.integers(0, 400), st.integers(0, built_in.vocab_size - 1))
    samples = st.sampled_from(SAMPLES).map(lambda text: built_in.encode(text, chat=False))
    tokens = data.draw(st.lists(ids, max_size=20) | samples)
    for end in range(len(tokens) + 1):
        pieces, rest = streamed(built_in, tokens[:end])
        whole = built_in.fast.decode(tokens[:end], skip_special_tokens=True)
        assert "".join(pieces) + rest == whole
        assert len(rest) <= 3  # bytes wait, each a character of its own at worst: [184, 111]


OCTETS = (0x0A, 0x41, 0x80, 0x9F, 0xC3, 0xE2, 0xF0)


@pytest.fixture(scope="module")
def fallback(tmp_path_factory: pytest.TempPathFactory) -> HfTokenizer:
    return sentencepiece_like(tmp_path_factory.mktemp("fallback"), OCTETS)


@given(st.lists(st.sampled_from([*OCTETS, "a", "\u2581b", "\u2581", "</s>"]), max_size=12))
@example([0x0A, 0xF0, 0x9F, 0x80])  # cut inside a character behind another octet
@example([0xF0, 0x9F, 0x80, "</s>", 0x80])
def test_octets_among_text_are_read_as_utf_8(
    fallback: HfTokenizer, written: list[int | str]
) -> None:
    """tokenizers would make each of a run of octets a replacement character if one of them is no
    text, those that have been shown too.
    """
    names = [f"<0x{each:02X}>" if isinstance(each, int) else each for each in written]
    tokens = fallback.fast.convert_tokens_to_ids(names)
    texts = [each.replace("\u2581", " ").replace("</s>", "") for each in names]
    pairs = zip(written, texts, strict=True)
    data = [bytes([each]) if isinstance(each, int) else text.encode() for each, text in pairs]
    for end in range(len(tokens) + 1):
        pieces, rest = streamed(fallback, tokens[:end])
        assert "".join(pieces) + rest == b"".join(data[:end]).decode("utf-8", "replace")
        assert len(rest) <= 1
    if not any(isinstance(each, int) and each >= 0x80 for each in written):
        behind = [*fallback.encode_plain("a"), *tokens]
        whole = fallback.fast.decode(behind, skip_special_tokens=True)[1:]
        assert "".join(streamed(fallback, tokens)[0]) == whole


def test_what_a_token_takes_does_not_grow_with_the_text(
    fallback: HfTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, decoded = fallback.decode, list[int]()
    (octet,) = fallback.fast.convert_tokens_to_ids(["<0x80>"])

    def counting(tokens: list[int], *, special: bool) -> str:
        decoded.append(len(tokens))
        return decode(tokens, special=special)

    monkeypatch.setattr(fallback, "decode", counting)
    assert streamed(fallback, [octet] * 50) == (["\ufffd"] * 50, "")
    assert max(decoded) <= 2


def test_what_follows_a_text_is_encoded_and_shown_as_it_is(tmp_path: Path) -> None:
    """Tokenizers like Llama 2's put a space in front of a text, and take it from what they show."""
    tokenizer = sentencepiece_like(tmp_path, octets=(0xC3,))
    for text in ("ab", " ab", "  a  b", "", " "):
        stream = tokenizer.stream()
        pieces = [stream.push(token) for token in tokenizer.encode_plain(text)]
        assert "".join(pieces) + stream.flush() == text
    first = tokenizer.encode("ab", chat=False)
    assert first == [1, *tokenizer.encode_plain(" ab")]
    ids = tokenizer.fast.convert_tokens_to_ids(["\u2581a", "a", "<0xC3>", "</s>"])
    assert [tokenizer.piece(token) for token in ids] == [" a", "a", "\ufffd", "</s>"]


@pytest.mark.parametrize("named", ["LlamaTokenizer", "GPT2Tokenizer", 7])
def test_the_stored_tokenizer_counts_whatever_class_is_named(tmp_path: Path, named: object) -> None:
    stored_tokenizer = families.byte_tokenizer()
    stored_tokenizer.save_pretrained(tmp_path)
    settings = {"tokenizer_class": named, "eos_token": "<|end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = HfTokenizer(tmp_path, frozenset(), families.VOCABULARY)
    for text in ("ab c", " a  b\n", "\tx"):
        stored = stored_tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, chat=False) == tokenizer.encode_plain(text) == stored
        assert "".join(map(tokenizer.stream().push, stored)) == text


def test_texts_are_encoded_whole_and_without_pads(tmp_path: Path) -> None:
    """Files from training truncate and pad."""
    stored = small_tokenizer(tmp_path).fast.backend_tokenizer
    stored.enable_truncation(3)
    stored.enable_padding(length=8, pad_token="<eos>")  # noqa: S106 (no password)
    stored.save(str(tmp_path / "tokenizer.json"))
    tokenizer = HfTokenizer(tmp_path, frozenset(), 16)
    tokenizer.fast.chat_template = "{{ messages[0]['content'] }}"
    for _ in range(2):
        assert tokenizer.encode("cbacb", chat=False) == [3, 2, 1, 3, 2]
        assert tokenizer.encode("cbacb", chat=True) == [3, 2, 1, 3, 2]
        assert tokenizer.encode_plain("a") == [1]


@pytest.mark.parametrize(
    ("text", "begins"), [("ab", 1), ("<s>ab", 1), ("<s><s>ab", 2), ("ab<s>", 1)]
)
def test_a_raw_prompt_begins_once(tmp_path: Path, text: str, begins: int) -> None:
    ids = sentencepiece_like(tmp_path).encode(text, chat=False)
    assert len(list(takewhile((1).__eq__, ids))) == begins


def test_the_chat_template_opens_the_assistants_turn(built_in: HfTokenizer) -> None:
    text = built_in.fast.decode(built_in.encode("Hello there", chat=True))
    assert text.endswith("<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\n")
    assert built_in.encode("Hello there", chat=False) == built_in.fast.encode("Hello there")


@pytest.mark.model
def test_a_template_that_refuses_or_is_not_there_says_what_to_do(
    built_in: HfTokenizer, tmp_path: Path
) -> None:
    built_in.fast.save_pretrained(tmp_path)
    strict = HfTokenizer(tmp_path, frozenset(), 49152)
    strict.fast.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(DerbyError, match=r"refuses this prompt \(roles must alternate\)"):
        strict.encode("x", chat=True)
    strict.fast.chat_template = None
    assert strict.eos_ids == {2}
    with pytest.raises(DerbyError, match="no chat template"):
        strict.encode("x", chat=True)


@pytest.mark.model
def test_tokens_that_extend_another_begin_with_its_text(built_in: HfTokenizer) -> None:
    decode, token = built_in.fast.decode, built_in.encode_plain("http:")[-1]
    extending = built_in.extending(token)
    every = [i for i in range(built_in.vocab_size) if i not in built_in.fast.all_special_ids]
    assert extending
    assert sorted(extending) == [i for i in every if decode([i]).startswith(decode([token]))]
    assert built_in.extending(built_in.fast.eos_token_id) == []


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}", "[Who?][I.][a]"),
        ("{{ messages[-1].content | tojson }}", '" a "'),
        ("{% for m in messages if m.role == 'human' %}{{ m.content }}{% endfor %}a", ""),
        ("{% for m in messages %}{{ m.content[0]['text'] }}{% endfor %}", ""),  # wants parts
    ],
)
def test_a_question_arrives_through_the_template_or_is_refused(
    tmp_path: Path, template: str, text: str
) -> None:
    """However short, and though a template says the same words by itself."""
    saved = chat_tokenizer()
    saved.chat_template = template
    saved.save_pretrained(tmp_path)
    tokenizer = HfTokenizer(tmp_path, frozenset(), VOCABULARY)
    if not text:
        with pytest.raises(DerbyError, match="leaves the prompt out"):
            tokenizer.encode(" a ", chat=True, earlier=(("Who?", "I."),))
        return
    tokens = tokenizer.encode(" a ", chat=True, earlier=(("Who?", "I."),))
    assert tokenizer.decode(tokens, special=True) == text


@pytest.mark.parametrize(
    ("stated", "end", "template", "ends", "named"),
    [
        ({PAD}, "<|endoftext|>", CHATML, {PAD, END}, True),
        ({PAD}, "<|im_end|>", None, {PAD, END}, True),
        ({END}, "<|im_end|>", CHATML, {END}, False),
        (set[int](), "<|im_end|>", CHATML, {END}, False),
        ({PAD}, "<|endoftext|>", CHATML.replace("<|im_end|>", "###"), {PAD}, False),
        ({PAD}, "<|endoftext|>", "{{ messages[0].content }}<|im_end|>", {PAD}, False),
    ],
)
def test_a_text_ends_where_any_of_its_files_says(
    tmp_path: Path, stated: set[int], end: str, template: str | None, ends: set[int], named: bool
) -> None:
    """The template by what it puts behind an answer; that is told where the configuration lacks
    it.
    """
    saved = chat_tokenizer()
    saved.eos_token, saved.chat_template = end, template
    saved.save_pretrained(tmp_path)
    tokenizer = HfTokenizer(tmp_path, frozenset(stated), VOCABULARY)
    assert tokenizer.eos_ids == ends
    assert ["<|im_end|>" in note for note in tokenizer.notes] == [True] * named


OPENS = (
    "<|im_start|>assistant\n"
    "{% if not SWITCH %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
)
DEFAULT = "{% if enable_thinking is not defined %}{% set enable_thinking = true %}{% endif %}"


@pytest.mark.parametrize(
    ("usual", "switch", "before"), [("on", "enable_thinking", DEFAULT), ("off", "thinking", "")]
)
def test_a_template_that_knows_thinking_switches_it(
    tmp_path: Path, usual: str, switch: str, before: str
) -> None:
    saved = chat_tokenizer()
    saved.chat_template = f"{before}{CHATML}{OPENS.replace('SWITCH', switch)}"
    saved.save_pretrained(tmp_path)
    tokenizer = HfTokenizer(tmp_path, frozenset(), 300)
    off, on, plain = (tokenizer.encode("Hi", chat=True, thinking=t) for t in ("off", "on", ""))
    assert plain == {"on": on, "off": off}[usual]
    assert [closing_tag(prompt, tokenizer.piece) for prompt in (off, on)] == ["", "</think>"]


def test_a_template_that_does_not_know_thinking_says_so(tmp_path: Path) -> None:
    chat_tokenizer().save_pretrained(tmp_path)
    tokenizer = HfTokenizer(tmp_path, frozenset(), 300)
    with pytest.raises(DerbyError, match="no thinking to switch"):
        tokenizer.encode("Hi", chat=True, thinking="off")
    with pytest.raises(DerbyError, match="need the chat template"):
        Request("Hi", chat=False, thinking="on")
