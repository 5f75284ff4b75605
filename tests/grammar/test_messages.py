"""Grammars that are wrong, hostile or lead nowhere end in one sentence for the user."""

import json
from typing import Any

import pytest
from lib import compile_grammar

from backend.errors import DerbyError
from backend.grammar.definition import definition_of
from backend.grammar.sandbox.child import examine
from backend.grammar.schema.refusals import FORMATS, KEYWORDS
from backend.grammar.slices import SLICES
from backend.grammar.sources import MAX_BYTES, GrammarSource, Kind
from backend.grammar.vocabulary import portable, read
from backend.text import ByteTokenizer
from backend.types import Proposal

BYTES = ByteTokenizer()
TOKENS = read(portable(BYTES), SLICES)


def refused(kind: Kind, text: str) -> str:
    with pytest.raises(DerbyError) as caught:
        examine(GrammarSource(kind, text, "test"), TOKENS)
    return str(caught.value)


def lark(text: str) -> GrammarSource:
    return GrammarSource("lark", text, "test")


@pytest.mark.parametrize(
    ("kind", "text", "place", "word"),
    [
        ("lark", 'start: "a" x\n', (1, 12), "x"),
        ("lark", 'start: "a"\nb: (\n', (2, 5), "')'"),
        ("lark", 'start: "\u00e9" (\n', (1, 13), "')'"),
        ("lark", 'start: "a"\n\nb: "abc\n', (3, 8), "Lark"),
        ("lark", 'start: "a" b\nb: "x" /[z-a]/\n', (2, 4), "range"),
        ("lark", 'start: "a"\nx: %json {\n"type": 3,}', (3, 11), "comma"),
        ("lark", 'start: %json {"type": "foo",}', (1, 29), "comma"),
        ("json_schema", '{"a":\n 1,}', (2, 4), "JSON"),
        ("regex", r"\d/\d(", (1, 6), "group"),
        ("regex", "a\nbc)", (2, 3), "group"),
        ("lark", 'star: "a"', None, "start"),
        ("json_schema", '{"type": "foo"}', None, "foo"),
        ("json_schema", '{"maximum": 1e999}', None, "number"),
        ("json_schema", '{"maximum": ' + "9" * 5000 + "}", None, "number"),
        ("json_schema", "[" * 5000, None, "nested"),
        ("json_schema", '{"a":' * 200 + "1" + "}" * 200, None, "recursion"),
        ("json_schema", '{"pattern": "("}', None, "group"),
    ],
)
def test_a_wrong_grammar_is_one_sentence_with_its_place_if_there_is_one(
    kind: Kind, text: str, place: tuple[int, int] | None, word: str
) -> None:
    sentence = refused(kind, text)
    where = f"at line {place[0]}, column {place[1]}: " if place else ""
    assert f"is wrong {where}".strip() in sentence
    assert word in sentence.partition("is wrong")[2]
    assert sentence.endswith(".")
    assert "\n" not in sentence


def test_a_source_is_checked_when_made() -> None:
    GrammarSource("lark", "a" * MAX_BYTES, "longest")
    with pytest.raises(DerbyError, match=rf"{MAX_BYTES + 2} bytes.*{MAX_BYTES}"):
        GrammarSource("lark", "a" * MAX_BYTES + "\u00e9", "too long")
    with pytest.raises(DerbyError, match="empty"):
        GrammarSource("regex", " \n", "blank")
    with pytest.raises(DerbyError, match="surrogate"):
        GrammarSource("regex", "a\ud800", "broken")
    with pytest.raises(DerbyError, match="gbnf"):
        GrammarSource("antlr", "start: x", "unknown")  # pyright: ignore[reportArgumentType]


def test_a_dead_end_is_an_error_that_quotes_the_text_before_it() -> None:
    constraint = compile_grammar(lark('start: "hello" x | "help"\nx: x "c"'), BYTES)
    constraint.advance(list(b"hello"))
    with pytest.raises(DerbyError, match=r"cannot continue after 'hello'"):
        constraint.masks_along(Proposal())
    with pytest.raises(DerbyError, match="at the start"):
        compile_grammar(lark('start: start "a"'), BYTES).masks_along(Proposal())


#: Parts of schemas that are refused, and words of the remedy.
REFUSED: dict[str, tuple[Any, str]] = {
    "if": ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, "'anyOf'"),
    "else": ({"else": {}}, "'anyOf'"),
    "not": ({"not": {"type": "string"}}, "say what is allowed"),
    "uniqueItems": ({"type": "array", "uniqueItems": True}, "leave it out"),
    "contains": ({"contains": {}, "minContains": 1, "maxContains": 2}, "'prefixItems'"),
    "propertyNames": ({"propertyNames": {"pattern": "^a"}}, "'patternProperties'"),
    "dependentRequired": ({"dependentRequired": {"a": ["b"]}}, "'anyOf'"),
    "dependentSchemas": ({"dependentSchemas": {"a": {}}}, "'anyOf'"),
    "dependencies": ({"dependencies": {"a": ["b"]}}, "'anyOf'"),
    "unevaluatedProperties": ({"unevaluatedProperties": False}, "'additionalProperties'"),
    "unevaluatedItems": ({"unevaluatedItems": False}, "'items'"),
    "$dynamicRef": ({"$dynamicRef": "#a"}, "'$ref'"),
    "$recursiveRef": ({"$recursiveRef": "#"}, "'$ref'"),
    "oneOf": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "'const'"),
    "format": ({"type": "string", "format": "iri"}, "write a 'pattern'"),
    "minProperties": ({"properties": {"a": {}}, "minProperties": 1}, "require all"),
    "patternProperties": ({"patternProperties": {"^a": {}, "b$": {}}}, "join them"),
    "$ref outside": ({"$ref": "https://example.com/a.json"}, "'$defs'"),
    "$ref nowhere": ({"$ref": "#/$defs/none"}, "define its target"),
    "multipleOf": ({"type": "number", "multipleOf": 0}, "above zero"),
    "look-ahead": ({"type": "string", "pattern": "(?=a)b"}, "write it without"),
    "word boundary": ({"type": "string", "pattern": "\\bfoo"}, "write it without"),
    "type": ({"type": "text"}, "write string, number"),
}
#: What is around a part: the part's pointer, and the schema.
AROUND = {
    "#": lambda part: part,
    "#/properties/a~1b/items": lambda part: {
        "type": "object",
        "properties": {"fine": {}, "a/b": {"type": "array", "items": part}},
        "required": ["a/b"],
    },
    "#/$defs/inner/anyOf/1": lambda part: {
        "$defs": {"inner": {"anyOf": [{"type": "null"}, part]}, "unused": {"not": {}}},
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/inner"}},
    },
}  # fmt: skip


@pytest.mark.parametrize("pointer", AROUND)
@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_has_a_pointer_and_a_remedy(name: str, pointer: str) -> None:
    """It was 'Unimplemented keys: ["not"]', with no word of where, or of what to do."""
    part, remedy = REFUSED[name]
    text = json.dumps(AROUND[pointer](part))
    sentence = refused("json_schema", text)
    assert sentence.startswith(f"The JSON Schema is wrong at {pointer}: ")
    assert remedy in sentence
    inline = refused("lark", f"start: a\na: %json {text}")
    assert inline.startswith("The grammar is wrong at line 2, column 4: ")
    assert f"(at {pointer} of the JSON Schema)" in inline
    assert remedy in inline


def test_of_several_schemas_in_one_grammar_the_wrong_one_is_named() -> None:
    fine, wrong = '{"type": "null"}', '{"items": {"not": {}}}'
    sentence = refused("lark", f"start: %json {fine} %json {wrong}\n")
    assert f"line 1, column {len('start: %json ' + fine) + 2}" in sentence
    assert "(at #/items of" in sentence


def test_the_lists_are_those_of_the_engine() -> None:
    """Every keyword that the app has a remedy for is refused, and every format it names is not."""
    for keyword in KEYWORDS:
        value: Any = "#" if keyword.startswith("$") else {}
        assert f"cannot enforce '{keyword}'" in refused("json_schema", json.dumps({keyword: value}))
    for known in FORMATS.split(", "):
        source = {"type": "string", "format": known}
        compile_grammar(GrammarSource("json_schema", json.dumps(source), known), BYTES)


def test_unique_items_that_need_not_be_unique_are_let_pass() -> None:
    """Generators write the default out: `"uniqueItems": false` was refused as if it were true."""
    schema = {"type": "array", "items": {"uniqueItems": False}, "uniqueItems": False}
    source = GrammarSource("json_schema", json.dumps(schema), "test")
    assert "uniqueItems" not in definition_of(source)
    compile_grammar(source, BYTES)
