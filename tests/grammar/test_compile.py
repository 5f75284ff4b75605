"""From texts to llguidance's matchers; what it refuses is one sentence with its own words."""

import json
from pathlib import Path
from typing import Any

import pytest
from lib import accepts, examples

from backend.errors import DerbyError
from backend.grammar.check import check
from backend.grammar.sources import (
    MAX_BYTES,
    GrammarSource,
    Kind,
    composed,
    grammar_from_file,
    shipped,
)


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


#: Met with itself, and that again.
LOOP: dict[str, Any] = {
    "$defs": {"a": {"anyOf": [{"type": "null"}, {"properties": {"x": {"$ref": "#/$defs/a"}}}]}},
    "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a", "minProperties": 1}],
}
#: A string with nine of each letter.
SEARCHES = json.dumps({"allOf": [{"pattern": f"(.*{c}){{9}}"} for c in "abcdefghij"]})


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
        (
            "json_schema",
            json.dumps(LOOP),
            "written (Schema intersection stack level exceeded): simplify",
        ),
        ("json_schema", SEARCHES, "written (Unable to determine if regex is empty): simplify"),
        ("gbnf", 'rot ::= "a"', "GBNF is wrong: No 'root' rule"),
        ("gbnf", "root ::= a", "GBNF is wrong: Rule 'a' not found"),
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


GBNF = r"""
# A list of numbers or names.
root  ::= item ("," ws item){0,2} "\n"
item  ::= number | "\"" [a-z_]+ "\""
number ::= "-"? [0-9] [0-9]* ("." [0-9]{1,2})?
ws    ::= [ \t]*
"""


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('-12.50, "a_b",7\n', True),
        ("1\n", True),
        ("1.234\n", False),
        ("1,2,3,4\n", False),
        ("1", False),
        ('"A"\n', False),
    ],
)
def test_gbnf_is_read_by_the_engines_converter(text: str, fits: bool) -> None:
    assert accepts(GrammarSource("gbnf", GBNF, "test"), text) == fits


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('{"a": {"a": {}}}', True),
        ('{"a":{"a":{}}}', True),
        (json.dumps(json.loads('{"a":' * 12 + "{}" + "}" * 12), indent=2), True),
        (json.dumps(json.loads('{"a":' * 7 + "{}" + "}" * 7), indent=4), True),
        ('{\n\t"a": {\n\t\t"a": {}\n\t}\n}', True),
        ('{\r\n  "a": {}\r\n}', True),
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
    if not text.endswith("\n"):
        assert accepts(GrammarSource("json_schema", free, "test"), text)


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


def test_a_grammar_has_a_longest_size_in_bytes() -> None:
    regex = "a" + "\u00e9" * ((MAX_BYTES - 2) // 2)
    GrammarSource("regex", regex, "long")
    with pytest.raises(DerbyError, match="grammar size"):
        GrammarSource("regex", regex + "\u00e9", "long")
