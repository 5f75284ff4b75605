"""Slices change no mask, and save the work they are there to save."""

import json
import random
import re
from collections.abc import Iterable
from functools import cache

import pytest
from lib import examples
from llguidance import LLInterpreter, LLTokenizer, TokenizerWrapper

from backend.grammar.sources import GrammarSource, definition_of, shipped
from backend.grammar.vocabulary import CODE_SLICES, SLICES, compile_matcher, slices_of

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
def awkward() -> tuple[LLTokenizer, LLTokenizer, LLTokenizer]:
    """A few thousand pieces of the examples, with what might stand beside them: without slices,
    with the usual ones, with those for code.
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
    return tokens, tokens.with_slices(list(SLICES)), tokens.with_slices(list(CODE_SLICES))


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
            assert masks[0] == masks[1] == masks[2]
            bits = int.from_bytes(masks[0], "little")
            allowed = [i for i in range(8 * len(masks[0])) if bits >> i & 1 and i != EOS]
            if not allowed:
                break
            token = rng.choice(allowed)
            assert [matcher.try_consume_tokens([token]) for matcher in matchers] == [1, 1, 1]


def walked(grammar: str, text: str, vocabulary: LLTokenizer) -> int:
    """Nodes of the vocabulary's tree that the mask after `text` looks at: none where the engine is
    in the state that it was in one byte before, as it keeps that mask.
    """
    definition = json.dumps({"grammars": [{"lark_grammar": grammar}]})
    engine = LLInterpreter(
        vocabulary, definition, enable_backtrack=False, enable_ff_tokens=False, log_level=0
    )
    engine.start_without_prompt()
    for byte in text.encode():
        engine.compute_mask()
        engine.commit_token(byte)
    progress = json.loads(engine.compute_mask()[1])["progress"]
    return next(event["stats"]["trie_nodes_walked"] for event in progress if "stats" in event)


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ('start: "a" NAME\nNAME: / ?[a-z]+([0-9_][a-z0-9_]*)?/ & ~/ ?(if|in|int)/', "a "),
        ("start: TEXT\nTEXT: /'([^'\\n]|'')*'/", "'"),
        ('start: /"[^"\\\\\\x00-\\x1F]{0,50}"/', '"it'),
        ("start: /[ A-Za-z0-9,'-]{3,99}\\./", "it"),
        ("start: /([^<]|<[^t])*/", "i"),
    ],
)
def test_a_slice_that_fits_is_not_walked(grammar: str, text: str) -> None:
    rng = random.Random(7)
    words = {"".join(rng.choices("etaoinshr", k=rng.randint(2, 9))) for _ in range(2000)}
    tokens = plain(words | {f" {word}" for word in words})
    assert walked(grammar, text, tokens) > 2000
    sliced = tokens.with_slices(list(SLICES))
    assert walked(grammar, text, sliced) < walked(grammar, text, tokens) / 5


def test_a_grammar_asks_for_slices_in_a_line_of_its_own() -> None:
    assert slices_of(shipped()["c"]) == CODE_SLICES
    inline = GrammarSource("lark", "start: WORD // slices: code\nWORD: /a/", "test")
    assert slices_of(inline) == SLICES
