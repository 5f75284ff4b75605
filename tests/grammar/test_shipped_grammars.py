"""What the shipped grammars accept is what independent parsers accept."""

import itertools
import random

import pytest
from judges import JUDGES
from lib import accepts, examples

from backend.grammar.sources import GrammarSource, definition_of, shipped
from backend.grammar.vocabulary import compile_matcher, vocabulary_of
from backend.text import ByteTokenizer

BYTES = ByteTokenizer()
#: Bytes that open something, so that a random text grows, and bytes that end something.
OPENING, CLOSING = b"([{<\"'`/*", b")]};.\"'\n#"
#: Bytes that a random text may be longer than its guide.
LONGEST = 200
#: Grammars of less than what their judges read: sqlglot, pycparser and the Python interpreter.
LENIENT = {"c", "python", "sql", "sql_block"}


def judged(name: str, text: str) -> bool:
    """True if the independent parser accepts."""
    try:
        JUDGES[name](text)
    except (ValueError, AssertionError):
        return False
    return True


def random_text(source: GrammarSource, guide: bytes, rng: random.Random) -> str | None:
    """A walk over allowed bytes, drawn to those of `guide` and to an end; None if it finds none.

    Without a guide, walks get lost in the first name or comment.
    """
    matcher = compile_matcher(definition_of(source), vocabulary_of(BYTES))
    walk: list[int] = []
    at, stray = 0, rng.uniform(0, 0.2)
    while len(walk) < len(guide) + LONGEST:
        bits = int.from_bytes(matcher.compute_bitmask(), "little")
        allowed = [byte for byte in range(256) if bits >> byte & 1]
        enough = at == len(guide) or rng.random() < 0.05
        if matcher.is_accepting() and (enough or not allowed):
            return bytes(walk).decode()
        ahead = (i for i in range(at, len(guide)) if bits >> guide[i] & 1)
        if rng.random() > stray and (i := next(ahead, None)) is not None:
            walk.append(guide[i])
            at = i + 1
        else:
            haste = 1 + len(walk) / 20
            walk += rng.choices(allowed, [_weight(byte, haste) for byte in allowed])
        assert matcher.try_consume_tokens(walk[-1:]) == 1
    return None


def _weight(byte: int, haste: float) -> float:
    if byte in CLOSING:
        return haste
    return 1 / haste if byte in OPENING or byte >= 128 else 1.0


def test_every_grammar_has_a_judge_and_no_judge_is_left_over() -> None:
    assert sorted(JUDGES) == list(shipped())


@pytest.mark.parametrize("name", shipped())
def test_grammar_and_judge_agree_on_the_examples(name: str) -> None:
    source, samples = shipped()[name], examples(name)
    assert len(samples.accept) >= 3
    assert len(samples.reject) >= 6
    assert samples.prompt
    for text in samples.accept:
        assert accepts(source, text), text
        assert judged(name, text), text
    for text in samples.reject:
        assert not accepts(source, text), text
        assert name in LENIENT or not judged(name, text), text
    for text in samples.narrower:
        assert not accepts(source, text), text
        assert judged(name, text), text


@pytest.mark.thorough
@pytest.mark.parametrize("name", shipped())
def test_the_judge_accepts_random_texts_of_the_grammar(name: str) -> None:
    source, rng = shipped()[name], random.Random(name)
    guides = [text.encode() for text in examples(name).accept]
    walks = (random_text(source, rng.choice(guides), rng) for _ in range(200))
    finished = list(itertools.islice((text for text in walks if text is not None), 30))
    assert len(finished) == 30
    for text in finished:
        JUDGES[name](text)
