"""Slices change no mask, and save the work they are there to save."""

import json
import random
import re
from collections.abc import Iterable
from functools import cache

import pytest
from lib import examples
from llguidance import LLInterpreter, LLTokenizer, TokenizerWrapper

from backend.grammar.compile import definition_of
from backend.grammar.sources import GrammarSource, shipped
from backend.grammar.vocabulary import CODE_SLICES, SLICES, compile_matcher, slices_of

OTHERS = [
    '"',
    "'",
    "\\",
    "*/",
    "\n    ",
    "\n\n",
    '", "',
    "');",
    "é",
    " ñ",
    "日本",
    "Ж ",
    "ß_9",
    "\t",
]


EOS = 256


class Vocabulary:
    """Every byte, the end of the text, and some longer tokens, as llguidance reads it."""

    eos_token_id = EOS
    bos_token_id = None
    special_token_ids = (EOS,)

    def __init__(self, *longer: bytes) -> None:
        self.tokens = (*(bytes([i]) for i in range(256)), b"<eos>", *longer)

    def __call__(self, text: bytes) -> list[int]:
        """Tokens of `text`, the longest first."""
        ids, spelled = {token: i for i, token in enumerate(self.tokens)}, list[int]()
        while text:
            end = next(end for end in range(len(text), 0, -1) if text[:end] in ids)
            spelled.append(ids[text[:end]])
            text = text[end:]
        return spelled


def vocabulary_of(pieces: Iterable[str]) -> Vocabulary:
    """Every byte, and the pieces."""
    return Vocabulary(*sorted(piece.encode() for piece in pieces if len(piece.encode()) > 1))


def plain_and_sliced(pieces: Iterable[str]) -> tuple[LLTokenizer, LLTokenizer]:
    plain = LLTokenizer(TokenizerWrapper(vocabulary_of(pieces)), eos_token=EOS, slices=[])
    return plain, plain.with_slices(list(SLICES))


@cache
def awkward_pieces() -> frozenset[str]:
    """A few thousand pieces of the examples, with what might stand beside them."""
    rng = random.Random(5)
    text = "\n".join(text for name in shipped() for text in examples(name).accept)
    pieces = set(re.findall(r" ?\w+", text)) | set(OTHERS)
    for _ in range(3000):
        start = rng.randrange(len(text))
        piece = text[start : start + rng.randint(2, 40)]
        other = rng.choice(["", "", *OTHERS])
        pieces.add(rng.choice([piece + other, other + piece]))
    return frozenset(pieces)


@cache
def vocabularies() -> tuple[LLTokenizer, LLTokenizer]:
    """Without slices, and with them."""
    pair = plain_and_sliced(awkward_pieces())
    assert pair[0].vocab_size > 3000
    return pair


@cache
def for_code() -> LLTokenizer:
    return vocabularies()[0].with_slices(list(CODE_SLICES))


def test_a_grammar_asks_for_slices_in_a_line_of_its_own() -> None:
    def asked(text: str) -> tuple[str, ...]:
        return slices_of(GrammarSource("lark", text, "test"))

    assert asked("// a language\n// slices: code\nstart: WORD\nWORD: /a/") == CODE_SLICES
    assert asked("start: WORD // slices: code\nWORD: /a/") == SLICES
    assert slices_of(shipped()["c"]) == CODE_SLICES
    assert slices_of(GrammarSource("regex", "// slices: code", "test")) == SLICES


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
@pytest.mark.parametrize("code", [False, True])
def test_masks_are_those_without_slices_along_random_texts(shape: str, *, code: bool) -> None:
    """Wherever the masks themselves lead, not where an example's author went."""
    plain, sliced = vocabularies()
    sliced = for_code() if code else sliced
    source = GrammarSource("lark", shape, "shape")
    rng = random.Random(shape)
    for _ in range(10):
        matchers = [compile_matcher(definition_of(source), each) for each in (plain, sliced)]
        for _ in range(12):
            masks = [matcher.compute_bitmask() for matcher in matchers]
            assert masks[0] == masks[1]
            allowed = [i for i in range(plain.vocab_size) if masks[0][i // 8] >> i % 8 & 1]
            allowed = [i for i in allowed if i != EOS]
            if not allowed:
                break
            token = rng.choice(allowed)
            assert [matcher.try_consume_tokens([token]) for matcher in matchers] == [1, 1]


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
    return next(told["stats"]["trie_nodes_walked"] for told in progress if "stats" in told)


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ('start: "a" NAME\nNAME: / ?[a-z]+([0-9_][a-z0-9_]*)?/ & ~/ ?(if|in|int)/', "a "),
        ('start: NAME ";"\nNAME: /[A-Za-z_]+([0-9][A-Za-z0-9_]*)?/ & ~/if|in|int/', ""),
        ('start: NAME ";"\nNAME: /[A-Za-z_][A-Za-z0-9_]*/', "a"),
        ("start: TEXT\nTEXT: /'([^'\\n]|'')*'/", "'"),
        ('start: /"[^"\\\\\\x00-\\x1F]{0,50}"/', '"it'),
        ("start: /[ A-Za-z0-9,'-]{3,99}\\./", "it"),
        ("start: /([^<]|<[^t])*/", "i"),
        ("start: /\\/\\*([^*]|\\*+[^*\\/])*\\*+\\//", "/*"),
    ],
)
def test_a_slice_that_fits_is_not_walked(grammar: str, text: str) -> None:
    rng = random.Random(7)
    words = {"".join(rng.choices("etaoinshr", k=rng.randint(2, 9))) for _ in range(2000)}
    plain, sliced = plain_and_sliced(words | {f" {word}" for word in words})
    assert walked(grammar, text, plain) > 2000
    assert walked(grammar, text, sliced) < walked(grammar, text, plain) / 5


def test_each_slice_is_part_of_one_above() -> None:
    tokens = [token.decode(errors="ignore") for token in vocabulary_of(awkward_pieces()).tokens]
    found: list[set[str]] = []
    for regex in SLICES:
        members = {token for token in tokens if re.fullmatch(regex, token)}
        assert len(members) > 20, regex
        assert not found or any(members <= above for above in found), regex
        found.append(members)
