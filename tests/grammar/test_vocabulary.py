"""Grammars bind whatever tokenizers spell texts in bytes, of others one sentence says why not; and
slices change no mask.
"""

import random
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from grammar_texts import compile_grammar, examples
from llguidance import LLTokenizer, TokenizerWrapper
from small_tokenizer import TOKENS, saved, small_tokenizer

from backend.errors import DerbyError
from backend.grammar.constraint import GrammarCompiler
from backend.grammar.sources import GrammarSource, definition_of, shipped
from backend.grammar.vocabulary import SLICES, compile_matcher
from backend.types import Proposal

REGEX = GrammarSource("regex", "a+b?", "test")


@pytest.mark.parametrize("known", [True, False])
def test_a_grammar_binds_a_tokenizer_of_a_known_class_or_not(tmp_path: Path, known: bool) -> None:
    constraint = compile_grammar(REGEX, small_tokenizer(tmp_path, known=known))
    assert constraint.masks_along(Proposal()).nonzero()[1].tolist() == [1, 4]
    constraint.advance([1])
    assert constraint.masks_along(Proposal()).nonzero()[1].tolist() == [0, 1, 2, 4]
    # Rows behind a drafted token after which nothing can follow must have something to sample.
    assert constraint.masks_along(Proposal.chain([2])).any(axis=1).all()
    constraint.advance([2])
    assert constraint.finished()


def test_a_tokenizer_without_an_end_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DerbyError, match="no end"):
        compile_grammar(REGEX, small_tokenizer(tmp_path, eos=False))


@pytest.mark.parametrize("model", ["words", "pieces"])
def test_a_tokenizer_that_hides_its_bytes_is_one_sentence(tmp_path: Path, model: str) -> None:
    """llguidance cannot tell what such tokens stand for."""
    from tokenizers import Tokenizer, decoders, models

    ids = {token: i for i, token in enumerate([*TOKENS, "?"])}
    built: Any = Tokenizer(models.WordLevel(ids, "?"))
    if model == "pieces":
        built = Tokenizer(models.WordPiece(vocab=ids, unk_token="?"))  # noqa: S106 (no password)
        built.decoder = decoders.WordPiece()
    tokenizer = saved(built, tmp_path)
    with pytest.raises(DerbyError, match="takes no grammar"):
        compile_grammar(REGEX, tokenizer)


@pytest.mark.parametrize("special", [False, True])
def test_an_added_token_is_its_text_unless_it_is_special(tmp_path: Path, special: bool) -> None:
    """The shipped grammar of tool calls forced a spelling of <tool_call> that no caller writes."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    built: Any = Tokenizer(models.BPE({text: i for i, text in enumerate(["<eos>", *letters])}, []))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    added = ["<tool_call>", "</tool_call>", "na\u00efve"]
    built.add_tokens([AddedToken(text, special=special, normalized=False) for text in added])
    built.add_special_tokens([AddedToken("</think>", special=True, normalized=False)])
    tokenizer = saved(built, tmp_path, width=300)
    ids = tokenizer.fast.convert_tokens_to_ids([*added, "</think>"])

    call = '\n{"name": "set_timer", "arguments": {"minutes": 1, "label": null}}\n'
    constraint = compile_grammar(shipped()["tool_call"], tokenizer)
    assert constraint.masks_along(Proposal())[0, ids].tolist() == [
        not special, False, not special, True,
    ]  # fmt: skip
    if special:
        compile_ = GrammarCompiler(tokenizer).compile
        (letter,) = tokenizer.encode("a", chat=False)
        lark = f'start: <tool_call> "a" <[{ids[1]}]> <[{letter}]>'
        named, tokens = (
            compile_(GrammarSource("lark", lark, "test")),
            [ids[0], letter, ids[1], letter],
        )
        named.masks_along(Proposal.chain(tokens))
        named.advance(tokens)
        assert named.finished()
        with pytest.raises(DerbyError, match=r"1\(8\): unknown special token: .<nope>."):
            compile_(GrammarSource("lark", "start: <nope>", "test"))
        return
    constraint.advance(tokenizer.encode(f"na\u00efve<tool_call>{call}"[:-1], chat=False))
    assert list(constraint.forced(9)) == tokenizer.encode("\n</tool_call>", chat=False)
    constraint.advance(tokenizer.encode("\n</tool_call>", chat=False))
    assert constraint.expected() == ""
    # The tag that ends a model's thinking is one wherever a grammar begins behind it.
    behind = compile_grammar(REGEX, tokenizer, "</think>")
    behind.advance(tokenizer.encode("na\u00efve a</think>", chat=False))
    letter = tokenizer.encode("a", chat=False)
    assert behind.masks_along(Proposal()).nonzero()[1].tolist() == letter
    behind.advance(letter)
    assert behind.answer() == "a"


EOS = 256
OTHERS = [*"\"'\\\t", "*/", "\n    ", '", "', "');", "é", " ñ", "日本", "Ж ", "ß_9"]


class Vocabulary:
    """Every byte, the end of the text, and some longer tokens, as llguidance reads it."""

    bos_token_id, eos_token_id, special_token_ids = None, EOS, (EOS,)

    def __init__(self, pieces: Iterable[str]) -> None:
        longer = sorted(piece.encode() for piece in pieces if len(piece.encode()) > 1)
        self.tokens = (*(bytes([i]) for i in range(256)), b"<eos>", *longer)

    def __call__(self, text: bytes) -> list[int]:
        """Tokens of `text`, the longest first."""
        ids, spelled = {token: i for i, token in enumerate(self.tokens)}, list[int]()
        while text:
            end = next(end for end in range(len(text), 0, -1) if text[:end] in ids)
            spelled.append(ids[text[:end]])
            text = text[end:]
        return spelled


def plain(pieces: Iterable[str]) -> LLTokenizer:
    """A vocabulary without slices."""
    return LLTokenizer(TokenizerWrapper(Vocabulary(pieces)), eos_token=EOS, slices=[])


@cache
def awkward() -> tuple[LLTokenizer, LLTokenizer]:
    """A few thousand pieces of the examples, with what might stand beside them: without slices and
    with them.
    """
    rng = random.Random(5)
    text = "\n".join(text for name in shipped() for text in examples(name).accept)
    pieces = set(re.findall(r" ?\w+", text)) | set(OTHERS)
    for _ in range(3000):
        start = rng.randrange(len(text))
        piece = text[start : start + rng.randint(2, 40)]
        other = rng.choice(["", "", *OTHERS])
        pieces.add(rng.choice([piece + other, other + piece]))
    tokens = plain(pieces)
    assert tokens.vocab_size > 3000
    return tokens, tokens.with_slices(list(SLICES))


#: Terminals bounded, unbounded, negated and spaced, as people's own grammars have them.
SHAPES = (
    "start: NAME\nNAME: /[a-z]+([0-9_][a-z0-9_]*)?/ & ~/if|in|int/",
    'start: NAME (" " NAME)*\nNAME: /[a-z][a-z0-9_]{0,9}/',
    "start: / ?[A-Za-z]+/ /;/",
    "start: TEXT\nTEXT: /'([^'\\n]|'')*'/",
    'start: "\\"" /[^"\\\\\\x00-\\x1F]{0,25}/ "\\""',
    "start: /[ A-Za-z0-9,'-]{3,45}\\./",
    "start: WORD+\nWORD: /[A-Z]+/\n%ignore / +/",
)


@pytest.mark.parametrize("shape", SHAPES)
def test_masks_are_those_without_slices_along_random_texts(shape: str) -> None:
    """Wherever the masks themselves lead, not where an example's author went."""
    definition, rng = definition_of(GrammarSource("lark", shape, "shape")), random.Random(shape)
    for _ in range(10):
        matchers = [compile_matcher(definition, tokens) for tokens in awkward()]
        for _ in range(12):
            masks = [matcher.compute_bitmask() for matcher in matchers]
            assert masks[0] == masks[1]
            bits = int.from_bytes(masks[0], "little")
            allowed = [i for i in range(8 * len(masks[0])) if bits >> i & 1 and i != EOS]
            if not allowed:
                break
            token = rng.choice(allowed)
            assert [matcher.try_consume_tokens([token]) for matcher in matchers] == [1, 1]
