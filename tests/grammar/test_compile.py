"""From texts to llguidance's matchers; what it refuses is one sentence with its own words."""

import json
from pathlib import Path

import pytest
from lib import compile_grammar

from backend.errors import DerbyError
from backend.grammar.check import check
from backend.grammar.compile import composed, definition_of, led_by
from backend.grammar.sources import GrammarSource, Kind, examples, grammar_from_file, shipped
from backend.text import ByteTokenizer
from backend.types import Proposal

BYTES = ByteTokenizer()


def lark(text: str) -> GrammarSource:
    return GrammarSource("lark", text, "test")


def accepts(source: GrammarSource, text: str) -> bool:
    draft = Proposal.chain([*text.encode(), BYTES.EOS])
    return compile_grammar(source, BYTES).cut(draft) is draft


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


def test_a_text_may_be_led_by_another() -> None:
    from backend.grammar.compile import compile_matcher
    from backend.grammar.vocabulary import build

    for source in (lark('start: "é" | "b"'), GrammarSource("json_schema", '{"const": 1}', "test")):
        matcher = compile_matcher(led_by('say "\n: ', definition_of(source)), build(BYTES).tokens)
        text = 'say "\n: é' if source.kind == "lark" else 'say "\n: 1'
        spelled = list(text.encode())
        assert matcher.try_consume_tokens(spelled) == len(spelled)
        assert matcher.is_accepting()


@pytest.mark.parametrize(
    ("kind", "text", "sentence"),
    [
        ("lark", 'start: "a"\n  | b', 'grammar is wrong at line 1: unknown name: "b".'),
        ("lark", '%import sql\nstart: "a" b', "grammar is wrong at line 2: unknown name"),
        ("lark", 'start: "a', "at line 1: lexer error."),
        ("lark", "start: /(a/", "at line 1: unclosed group."),
        ("lark", "start: start", "grammar is wrong: no text fits it."),
        ("regex", "(a|b", "regular expression is wrong: unclosed group"),
        ("regex", "a\\", "Character 2 of the regular expression"),
        ("json_schema", '{"type": "strin"}', "JSON Schema is wrong: Invalid type: strin."),
        ("json_schema", '{"uniqueItems": true}', "uniqueItems"),
        ("json_schema", '{"a": ', "JSON Schema is wrong: Expecting value: line 1"),
        ("json_schema", '{"maximum": NaN}', "JSON Schema is wrong"),
    ],
)
def test_the_sentence_has_the_engines_words(kind: Kind, text: str, sentence: str) -> None:
    with pytest.raises(DerbyError) as refused:
        check(GrammarSource(kind, text, "test"))
    assert sentence in str(refused.value)


def test_what_a_grammar_cannot_enforce_may_be_left_to_the_check_at_the_end() -> None:
    """The engine's own `lenient`."""
    schema = {"items": {"enum": [1, 2]}, "uniqueItems": True, "x-guidance": {"lenient": True}}
    assert check(GrammarSource("json_schema", json.dumps(schema), "test"), "[1, 1]").accepting


def test_gbnf_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "mine.gbnf"
    path.write_text('root ::= "a"')
    with pytest.raises(DerbyError, match="GBNF"):
        compile_grammar(grammar_from_file(path), BYTES)


@pytest.mark.parametrize(
    ("suffix", "text"),
    [("lark", 'start: "a"'), ("regex", "a"), ("schema.json", '{"const": 1}')],
)
def test_a_byte_order_mark_is_no_part_of_a_grammar(suffix: str, text: str, tmp_path: Path) -> None:
    """Editors of Windows write one."""
    path = tmp_path / f"marked.{suffix}"
    path.write_text(text, encoding="utf-8-sig")
    assert grammar_from_file(path).text == text


def test_a_file_that_is_no_text_or_of_no_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.lark"
    path.write_bytes(b'start: "\xc3"')
    with pytest.raises(DerbyError, match=r"broken\.lark"):
        grammar_from_file(path)
    with pytest.raises(DerbyError, match=r"grammar.txt.*\.lark"):
        grammar_from_file(tmp_path / "grammar.txt")


def test_text_that_reads_as_what_it_is_not_is_refused() -> None:
    for character in "\0\u202a\u202e\u2066\u2069":
        with pytest.raises(DerbyError, match=rf"U.{ord(character):04X}"):
            lark(f'ab\n"\u00e9\U0001f600{character}"')
    lark(r'"\u202e"' + "\u200d\u2065\u00e9")
    with pytest.raises(DerbyError, match="D800"):
        lark("\ud800")
