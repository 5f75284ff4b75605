"""Every text of a grammar can end: those in which one could not are refused, and no others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from backend.errors import DerbyError
from backend.grammar.lark.productive import require_productive
from backend.grammar.lark.rules import MAX_DEPTH
from backend.grammar.messages import Part
from backend.grammar.sources import GrammarSource

BYTES = LLTokenizer("byte")


def part(text: str, name: str = "") -> Part:
    grammar = {"lark_grammar": text} | ({"name": name} if name else {})
    return Part(name, grammar, GrammarSource("lark", text, name or "test"))


def refused(*parts: Part) -> str:
    """What is said against linked grammars; "" if nothing is."""
    try:
        require_productive(parts)
    except DerbyError as error:
        return str(error)
    return ""


def refused_schema(schema: Any) -> str:
    source = GrammarSource("json_schema", "{}", "its text is not read")
    return refused(Part("", {"json_schema": schema}, source))


@pytest.mark.parametrize(
    ("text", "place", "name"),
    [
        ('start: "a" start', (1, 1), "start"),
        ('start: start "a"', (1, 1), "start"),
        ('start: "a" | b\nb: "x" b', (2, 1), "b"),
        ('start: "a" b | "c"\n\n !?b: b "x"', (3, 2), "b"),
        ('start: a b*\na: "a"\nb: "x" c\nc: a b', (3, 1), "b"),
        ('start: ("a" [b])? "c"\nb: ("(" b ")") | b', (2, 1), "b"),
        ('start: b{0,2} "a"\nb: "x"{2} b{2,}', (2, 1), "b"),
        ('start: b~0..2 "a"\nb: "x" b~1', (2, 1), "b"),
        ('start: "a" T | "b"\nT: /b/ & U\nU: /c/', (1, 12), "T"),
        ('start: "a" /[^\\s\\S]/ | "b"', (1, 12), "matches"),
        ('start: "a" %json {"$ref": "#"}', (1, 12), "JSON"),
        ('start: "a" %lark {\n start: x | "b" \n  x: "c" x }', (3, 3), "x"),
    ],
)
def test_a_rule_that_never_ends_is_named_with_its_place(
    text: str, place: tuple[int, int], name: str
) -> None:
    said = refused(part(text))
    assert f"wrong at line {place[0]}, column {place[1]}: " in said
    assert name in said.partition(": ")[2]


@pytest.mark.parametrize(
    "text",
    [
        'start: "a" start | "b"',
        'start: "a" start?',
        'start: "a" start{0,3}',
        'start: "a" start~0..3 | start',
        'start: "(" (start | [start])* ")"',
        'start: "a"\nb: "x" b',
        'start: "a" | b\nb: b "x"',
        'start: "a" | b c\nb: b "x"\nc: "y" c',
        'start: "a" | x b\nb: b "x"\nx: "" | [x]',
        'start: "a" | T "b"\nT: /b/ & /c/',
        'start: "a" T\nT: /ab?/ & ~/ab/',
        'start: "a" /[^a]/ %regex {"substring_words": "a b"} <[1]> x -> y | "b"\nx: ""',
        'start: "a" %lark { start: "b" start? } %json {"type": "array", "items": {"$ref": "#"}}',
        'start: "a" nowhere @nowhere',
        "start:\n",
        "x: x",
        'start: "a" (',
    ],
)
def test_what_can_end_or_is_never_entered_is_let_pass(text: str) -> None:
    assert refused(part(text)) == ""


def test_the_file_of_an_imported_rule_is_named() -> None:
    main = part('start: "a" x | @schema\n\nx: @sub')
    assert refused(main, part('start: "b"', "sub")) == ""
    error = refused(main, part('start: "b" y |\ny: "c" y', "sub"))
    assert error.startswith("The grammar 'sub' is wrong at line 2, column 1: ")
    endless = {"type": "array", "minItems": 1, "items": {"$ref": "#"}}
    source = GrammarSource("json_schema", json.dumps(endless), "schema")
    schema = Part("schema", {"name": "schema", "json_schema": endless}, source)
    assert refused(main, part('start: "b"', "sub"), schema).startswith(
        "The JSON Schema 'schema' is wrong: "
    )


@st.composite
def small_grammars(draw: st.DrawFn) -> dict[str, list[list[str]]]:
    """Up to four rules: alternatives of rules and letters, with at least one symbol each."""
    names = ["start", "x", "y", "z"][: draw(st.integers(1, 4))]
    symbols = st.sampled_from([*names, *names, '"a"', '"b"'])
    rows = st.lists(st.lists(symbols, min_size=1, max_size=3), min_size=1, max_size=3)
    return {name: draw(rows) for name in names}


def ending(rules: dict[str, list[list[str]]], symbol: str, depth: int) -> bool:
    """The oracle: a tree of that depth at most derives a text."""
    return symbol not in rules or (
        depth > 0
        and any(all(ending(rules, inner, depth - 1) for inner in row) for row in rules[symbol])
    )


def dead_end(text: str, length: int) -> bool:
    """Whether llguidance lets a text be begun that nothing can continue: all texts are tried."""
    matcher = LLMatcher(BYTES, json.dumps({"grammars": [{"lark_grammar": text}]}), log_level=0)
    waiting = [matcher]
    for _ in range(length):
        after: list[LLMatcher] = []
        for at in waiting:
            steps = [at.deep_copy() for _ in "ab"]
            taken = [
                m for m, byte in zip(steps, b"ab", strict=True) if m.try_consume_tokens([byte])
            ]
            if not taken and not at.is_accepting():
                return True
            after += taken
        waiting = after
    return False


@settings(max_examples=100, deadline=None)
@given(small_grammars())
def test_random_grammars_are_refused_if_the_start_cannot_end_and_never_if_all_can(
    rules: dict[str, list[list[str]]],
) -> None:
    text = "".join(
        f"{name}: {' | '.join(' '.join(row) for row in rows)}\n" for name, rows in rules.items()
    )
    ends = {name: ending(rules, name, len(rules)) for name in rules}
    said = refused(part(text))
    if not ends["start"]:
        assert said, text
    if all(ends.values()):
        assert not said, text
    if not said:
        assert not dead_end(text, 4), text


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


LOOP = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
ANCHORED = LOOP | {"$anchor": "n", "properties": {"next": {"$ref": "#n"}}}


@pytest.mark.parametrize(
    "schema",
    [
        LOOP,
        {"$ref": "#"},
        {"type": "array", "minItems": 1, "items": {"$ref": "#"}},
        {"type": "array", "minItems": 2, "prefixItems": [{}, {"$ref": "#"}]},
        {"type": "array", "minItems": 2, "prefixItems": [{}], "items": {"$ref": "#"}},
        {"type": "array", "minItems": 1, "items": [{"$ref": "#"}]},
        {"type": "object", "minProperties": 1, "additionalProperties": {"$ref": "#"}},
        {"type": "object", "required": ["a"], "additionalProperties": {"$ref": "#"}},
        {"allOf": [{"type": "object"}, LOOP | {"type": ["object", "null"]}]},
        {"anyOf": [{"$ref": "#/anyOf/1"}, {"oneOf": [{"$ref": "#"}]}]},
        {"$id": "https://a.b/c", "allOf": [{"$ref": "https://a.b/c#"}]},
        {"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"$ref": "#/$defs/a~1b c"}}},
    ],
)
def test_a_schema_that_only_endless_json_meets_is_refused(schema: Any) -> None:
    assert "is wrong: no finite JSON can meet it" in refused_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        LOOP | {"type": ["object", "null"]},
        {"properties": {"next": {"$ref": "#"}}, "required": ["next"]},
        {"type": "object", "properties": {"next": {"$ref": "#"}}},
        {"type": "array", "items": {"$ref": "#"}},
        {"type": "array", "minItems": 1, "items": {"anyOf": [{"$ref": "#"}, {"const": 1}]}},
        {"type": "object", "minProperties": 1, "properties": {"a": {"$ref": "#"}}},
        {"type": "object", "required": ["a"], "properties": {"a": {"enum": [None]}}},
        {"type": "object", "$defs": {"loop": ref("loop")}},
        {"type": "object", "required": ["a"], "properties": {"a": False}},
        {"anyOf": [{"type": "null"}, {"allOf": [{"type": "string"}, {"type": "object"}]}]},
        {"$ref": "https://elsewhere/#"},
        {"$ref": "#/$defs/nowhere"},
        {"$defs": {"n": ANCHORED | {"required": []}}, "$ref": "#n"},
        {"$ref": "#anchor", "items": 3, "required": 3, "type": 3, "minItems": "x"},
        True,
        [],
        None,
    ],
)
def test_other_schemas_are_let_pass(schema: Any) -> None:
    assert refused_schema(schema) == ""


def test_a_loop_by_the_name_of_a_part_is_seen() -> None:
    """Texts of it had no end: references by "$anchor" were taken for unknown ones."""
    assert refused_schema({"$defs": {"n": ANCHORED}, "$ref": "#n"}) != ""


def test_the_part_of_a_schema_that_never_ends_is_named() -> None:
    loop = {"type": "object", "required": ["n"], "properties": {"n": ref("loop")}}
    schema = {"anyOf": [{"type": "null"}, {"items": ref("loop")}], "$defs": {"loop": loop}}
    assert "its part '#/anyOf/1/items'" in refused_schema(schema)


@st.composite
def small_schemas(draw: st.DrawFn) -> dict[str, Any]:
    """Up to four definitions of objects, arrays and choices that refer to each other."""
    names = "abcd"[: draw(st.integers(1, 4))]
    refs = st.sampled_from(names).map(ref)
    leaf = st.sampled_from([{"type": "null"}, {"const": [1]}, {"type": "string"}])
    inner = st.one_of(refs, refs, refs, leaf)
    objects = st.lists(inner, min_size=1, max_size=2).map(
        lambda parts: {
            "type": "object",
            "properties": {f"p{n}": part for n, part in enumerate(parts)},
            "required": [f"p{n}" for n in range(len(parts))],
        }
    )
    arrays = st.tuples(inner, st.integers(0, 1)).map(
        lambda p: {"type": "array", "items": p[0], "minItems": p[1]}
    )
    choices = st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"anyOf": parts})
    defined = {name: draw(st.one_of(objects, arrays, choices)) for name in names}
    return {"$ref": "#/$defs/a", "$defs": defined}


def meets(schema: dict[str, Any], node: dict[str, Any], depth: int) -> bool:
    """The oracle: JSON that nests no deeper than that meets the node."""
    if depth == 0:
        return False
    if "$ref" in node:
        return meets(schema, schema["$defs"][node["$ref"][-1]], depth - 1)
    if "anyOf" in node:
        return any(meets(schema, inner, depth - 1) for inner in node["anyOf"])
    needed = list(node.get("properties", {}).values())
    needed += [node["items"]] if node.get("minItems") else []
    return all(meets(schema, inner, depth - 1) for inner in needed)


def reached(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The definitions that the schema leads to."""
    found = ["a"]
    for name in found:
        inner = json.dumps(schema["$defs"][name])
        found += [n for n in schema["$defs"] if f"$defs/{n}" in inner and n not in found]
    return [schema["$defs"][name] for name in found]


@settings(max_examples=100, deadline=None)
@given(small_schemas())
def test_random_schemas_are_refused_if_a_part_of_them_cannot_end(schema: dict[str, Any]) -> None:
    depth = 2 * len(schema["$defs"]) + 2
    all_end = all(meets(schema, node, depth) for node in reached(schema))
    assert (refused_schema(schema) == "") == all_end


def test_grammars_inside_each_other_are_limited() -> None:
    text = "start: " + "%lark { start: " * 200 + '"a"' + "}" * 200
    assert f"more than {MAX_DEPTH} deep" in refused(part(text))


def test_schemas_as_deep_as_json_allows_are_read_without_recursion() -> None:
    schema: Any = {"$ref": "#"}
    for _ in range(5000):
        schema = {"type": "array", "minItems": 1, "items": schema}
    assert "no finite JSON" in refused_schema(schema)
