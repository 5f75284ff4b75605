"""What is written as a grammar is compiled or refused in one sentence, and what ships accepts what
independent parsers accept.
"""

import itertools
import json
import random
from pathlib import Path

import pytest
from grammar_texts import accepts, examples
from judges import JUDGES

from backend.errors import DerbyError
from backend.grammar.check import check
from backend.grammar.sources import (
    MAX_BYTES,
    GrammarSource,
    Kind,
    composed,
    definition_of,
    grammar_from_file,
    shipped,
)
from backend.grammar.vocabulary import compile_matcher, vocabulary_of
from backend.tokenizer import ByteTokenizer


def lark(text: str) -> GrammarSource:
    return GrammarSource("lark", text, "test")


@pytest.mark.parametrize("name", shipped())
def test_each_shipped_grammar_can_be_a_rule_of_another(name: str) -> None:
    source = lark(f'%import {name}\nstart: "<<" {name}')
    for text in examples(name).accept:
        assert accepts(source, f"<<{text}"), text
        assert not accepts(source, text)


def test_sql_is_composed_into_a_fence() -> None:
    fenced = "Here it is:\n```sql\nSELECT name FROM users;\n```"
    assert accepts(shipped()["sql_block"], fenced)
    assert not accepts(shipped()["sql_block"], fenced.replace("SELECT", "PICK"))
    text = 'start: WORD sql\nWORD: "a"\n\n%import sql\n%import common.INT\n'
    assert composed(text).startswith('start: WORD sql\nWORD: "a"\n\n\n%import common.INT\n')
    assert check(lark(text), "aSELECT a FROM b;").accepting
    with pytest.raises(DerbyError, match=r"'mine'.*account"):
        composed("%import mine\nstart: mine")


@pytest.mark.parametrize(
    ("kind", "text", "sentence"),
    [
        ("lark", 'start: "a"\n  | b', 'followed (at 1(8): unknown name: "b"): mend or simplify'),
        ("lark", '%import sql\nstart: "a" b', "followed (at 2(8): unknown name"),
        ("lark", "start: start", "grammar cannot be followed (no text fits it)"),
        ("lark", "start: <|a|>", 'followed (at 1(8): unknown special token: "<|a|>"'),
        ("lark", 'start: "b" a\na[max_tokens=3]: "x"+', "rollback not supported with max_tokens"),
        ("lark", 'start: %json {"uniqueItems": true}', 'Unimplemented keys: ["uniqueItems"]'),
        ("regex", "a(", "regex parse error"),
        ("json_schema", '{"type": "strin"}', "cannot be followed (Invalid type: strin)"),
        ("json_schema", '{"maximum": 1', "followed (EOF while parsing an object at line 1"),
        ("gbnf", 'root ::= "a"', "write Lark, a JSON Schema or a regular expression (regex)."),
    ],
)
def test_the_sentence_has_the_engines_words(kind: Kind, text: str, sentence: str) -> None:
    with pytest.raises(DerbyError) as refused:
        check(GrammarSource(kind, text, "test"))
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('{"a":{"a":{}}}', True),
        (json.dumps(json.loads('{"a":' * 7 + "{}" + "}" * 7), indent=4), True),
        ('{\r\n\t"a": {}\r\n}', True),
        ('{"a":  {}}', False),
        ('{\n\n"a": {}}', False),
        ('{"a": {}}\n', False),
    ],
)
def test_white_space_is_what_printers_of_json_write(text: str, fits: bool) -> None:
    """Not any: a small model that may write one more space for ever will."""
    nested = '{"type": "object", "properties": {"a": {"$ref": "#"}}, "additionalProperties": false'
    assert accepts(GrammarSource("json_schema", f"{nested}}}", "test"), text) == fits
    free = f'{nested}, "x-guidance": {{"whitespace_flexible": true}}}}'
    assert accepts(GrammarSource("json_schema", free, "test"), text) != text.endswith("\n")


def test_a_grammar_is_a_text_of_a_known_kind_and_a_bounded_size(tmp_path: Path) -> None:
    path = tmp_path / "test.lark"
    path.write_bytes(b'\xef\xbb\xbfstart: "a"')  # as some editors begin a file
    assert grammar_from_file(path) == lark('start: "a"')
    path.write_bytes(b'start: "\xc3"')
    with pytest.raises(DerbyError, match=r"test\.lark"):
        grammar_from_file(path)
    with pytest.raises(DerbyError, match=r"grammar.txt.*\.lark"):
        grammar_from_file(tmp_path / "grammar.txt")
    with pytest.raises(DerbyError, match="D800"):
        lark("\ud800")
    regex = "a" + "\u00e9" * ((MAX_BYTES - 2) // 2)
    GrammarSource("regex", regex, "long")
    with pytest.raises(DerbyError, match="grammar size"):
        GrammarSource("regex", regex + "\u00e9", "long")


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
