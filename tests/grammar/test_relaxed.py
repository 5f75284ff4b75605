"""Schemas without what the engine refuses take at least what the whole ones take, and texts of them
are judged under the whole ones.
"""

import json
import re
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker
from styled_schemas import HELD, REFUSED
from walks import EOS, Choice, Vocabulary, walk

from backend.engines.fake import ByteTokenizer
from backend.errors import DerbyError
from backend.grammar.sandbox.parent import Sandbox
from backend.grammar.schema.relaxed import judge_relaxed, relaxed
from backend.grammar.schema.validity import judge
from backend.grammar.sources import GrammarSource
from backend.types import Proposal

BYTES = ByteTokenizer()
VOCABULARY = Vocabulary()
INDEPENDENT = FormatChecker(("date", "uuid", "json-pointer", "date-time"))

ATOMS = st.sampled_from((0, 1, 2, 3, 0.5, "a", "ab", "2024-01-01", "x y", None, True))
VALUES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(("a", "b", "c d")), inner, max_size=3)
    ),
    max_leaves=6,
)
LEAVES = st.sampled_from(
    (
        {},
        True,
        False,
        {"type": "integer"},
        {"type": "number"},
        {"type": "string", "format": "date"},
        {"pattern": "^a"},
        {"type": "string", "pattern": "^(?!ab)"},
        {"const": 1},
        {"enum": ["a", 2, None]},
        {"$ref": "#/$defs/shared"},
    )
)


SHARED = {"type": ["integer", "string"], "not": {"const": 2}}


def _with(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A schema of a few keywords over `inner`, of which most are refused by the engine."""
    names = st.sampled_from(("a", "b", "c d"))
    several = st.lists(inner, min_size=1, max_size=3)
    keywords = {
        "properties": st.dictionaries(names, inner, max_size=2),
        "patternProperties": st.dictionaries(
            st.sampled_from(("^a", "^(?!b)", " ")), inner, max_size=2
        ),
        "additionalProperties": inner,
        "required": st.lists(names, max_size=2, unique=True),
        "items": inner,
        "prefixItems": several,
        "anyOf": several,
        "allOf": several,
        "oneOf": several,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "contains": inner,
        "minContains": st.integers(0, 2),
        "maxContains": st.integers(0, 2),
        "uniqueItems": st.booleans(),
        "propertyNames": inner,
        "unevaluatedProperties": inner,
        "unevaluatedItems": inner,
        "dependentRequired": st.dictionaries(names, st.lists(names, max_size=1), max_size=2),
        "dependentSchemas": st.dictionaries(names, inner, max_size=2),
    }
    return st.lists(st.sampled_from(sorted(keywords)), max_size=4, unique=True).flatmap(
        lambda words: st.fixed_dictionaries({word: keywords[word] for word in words})
    )


SCHEMAS = st.recursive(LEAVES, _with, max_leaves=12)


def known(schema: str) -> bool:
    """Another engine's opinion: no format, and no pattern that looks ahead."""
    return not re.search(r"format|\(\?!", schema)


def valid(schema: Any, value: Any) -> bool:
    return Draft202012Validator(schema, format_checker=INDEPENDENT).is_valid(value)


@settings(max_examples=100, deadline=None)
@given(SCHEMAS, st.lists(VALUES, min_size=6, max_size=6))
def test_what_the_whole_schema_takes_the_relaxed_one_takes(top: Any, values: list[Any]) -> None:
    """Dropping a part below `not`, `if` or `oneOf` would have refused valid texts."""
    schema = {"allOf": [top], "$defs": {"shared": SHARED}}
    written = json.dumps(schema)
    found = relaxed(schema, known)
    assert json.dumps(schema) == written, "the schema itself is left alone"
    for value in values:
        assert valid(found.schema, value) or not valid(schema, value)


#: A schema that the engine holds, and a value that meets it, names in the schema's order.
Pair = tuple[Any, Any]


@st.composite
def bounded(draw: st.DrawFn) -> Pair:
    """Texts, numbers and dates within bounds."""
    low, high = sorted(draw(st.tuples(st.integers(0, 4), st.integers(0, 4))))
    text = draw(st.text('abé "\\\n', min_size=low, max_size=high))
    whole = {"type": "integer", "minimum": -(10**low), "maximum": 10**high}
    pairs: tuple[Pair, ...] = (
        ({"type": "string", "minLength": low, "maxLength": high}, text),
        ({"type": "string", "format": "date"}, str(draw(st.dates()))),
        (whole, draw(st.integers(whole["minimum"], whole["maximum"]))),
        ({"type": "number", "minimum": 0}, draw(st.integers(0, 9999)) / 100),
    )
    return draw(st.sampled_from(pairs))


@st.composite
def compound(draw: st.DrawFn, inner: st.SearchStrategy[Pair]) -> Pair:
    """Choices, arrays and objects of others."""
    parts = draw(st.lists(inner, min_size=1, max_size=3))
    schemas, values = [schema for schema, _ in parts], [value for _, value in parts]
    named = {f"name {n}": part for n, part in enumerate(parts)}
    left = draw(st.sets(st.sampled_from(sorted(named))))
    an_object = {
        "type": "object",
        "properties": {name: schema for name, (schema, _) in named.items()},
        "required": [name for name in named if name not in left],
        "additionalProperties": False,
    }
    count, least = draw(st.integers(0, 3)), {"type": "array", "minItems": len(parts)}
    pairs: tuple[Pair, ...] = (
        ({"anyOf": schemas}, values[-1]),
        ({"type": "array", "items": schemas[0], "maxItems": 3}, values[:1] * count),
        (least | {"prefixItems": schemas, "items": False}, values),
        (an_object, {name: value for name, (_, value) in named.items() if name not in left}),
    )
    return draw(st.sampled_from(pairs))


LISTED = VALUES.map(lambda value: ({"enum": ["x", value]}, value))
HELD_PAIRS = st.recursive(LISTED | bounded(), compound, max_leaves=6)


@settings(max_examples=100, deadline=None)
@given(HELD_PAIRS, VALUES, st.sampled_from((None, 2)))
def test_a_text_is_accepted_if_it_is_valid_and_not_if_it_is_not(
    pair: Pair, other: Any, indent: int | None
) -> None:
    """Characters stand for themselves: of their escapes the engine takes only the needed ones."""
    schema, value = pair
    constraint = VOCABULARY.constraint(source(schema, relax=False))

    def accepted(value: Any) -> bool:
        text = json.dumps(value, indent=indent, ensure_ascii=False)
        whole = Proposal.chain([*text.encode(), EOS])
        return constraint.cut(whole) is whole

    assert valid(schema, value)
    assert accepted(value)
    assert valid(schema, other) or not accepted(other)


def source(schema: Any, *, relax: bool) -> GrammarSource:
    return GrammarSource("json_schema", json.dumps(schema), "styled", relax=relax)


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_be_relaxed_is_offered_so_and_then_taken(name: str, sandbox: Sandbox) -> None:
    """24 of 81 schemas in the style of real ones were refused, and that was all."""
    schema, left = REFUSED[name]
    with pytest.raises(DerbyError, match="Or set relax"):
        sandbox.examine(source(schema, relax=False), BYTES)
    assert sandbox.examine(source(schema, relax=True), BYTES)
    assert set(judge_relaxed(json.dumps(schema), "null").later) == left


def test_no_offer_is_made_that_would_be_refused(sandbox: Sandbox) -> None:
    for schema in ({"$ref": "#/$defs/gone", "not": {}}, {"type": "strin"}):
        with pytest.raises(DerbyError) as refused:
            sandbox.examine(source(schema, relax=False), BYTES)
        assert "relax" not in str(refused.value)


#: What ends a text soonest, the best first.
ENDS = (EOS, *b'"}]')


def towards_the_end(rng: Random) -> Choice:
    def choose(tokens: Sequence[int], text: bytes) -> int:
        soon = [token for token in ENDS if token in tokens]
        if soon and rng.random() < (0.7 if len(text) > 80 else 0.3):
            return soon[0]
        return rng.choice([token for token in tokens if 32 <= token < 127] or tokens)

    return choose


@pytest.mark.parametrize("name", [*HELD, *REFUSED])
def test_what_is_called_valid_is_valid_by_another_validator(name: str) -> None:
    """Texts of five of 57 schemas were not, and the column said nothing."""
    schema = HELD[name] if name in HELD else REFUSED[name][0]
    judging = judge if name in HELD else judge_relaxed
    constraint = source(schema, relax=name in REFUSED)
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    called = set[str]()
    for seed in range(8):
        written = walk(
            VOCABULARY.constraint(constraint), towards_the_end(Random(seed)), limit=2000
        ).decode(errors="replace")
        found = judging(json.dumps(schema), written)
        called.add(found.verdict)
        if found.verdict == "valid" and "multipleOf" not in json.dumps(schema):
            validator.validate(json.loads(written))
        if found.verdict == "invalid":
            assert found.why
    assert "unchecked" not in called


@pytest.mark.parametrize(
    ("schema", "text", "why"),
    [
        ({"type": "string", "format": "date-time"}, '"2024-01-01T10:00:60Z"', "date-time"),
        ({"type": "string", "format": "time"}, '"10:00:60Z"', "time"),
        ({"type": "string", "pattern": '^[^"]*$'}, r'"a\"b"', "does not match"),
        ({"type": "string", "pattern": r"[^\\]"}, r'"\\"', "does not match"),
        ({"type": "string", "format": "email"}, json.dumps("a" * 65 + "@b"), "email"),
        ({"type": "object", "minProperties": 2}, '{"a":1,"a":2}', "twice"),
    ],
)
def test_faults_of_llguidance_are_named(schema: Any, text: str, why: str) -> None:
    """Its masks take these, so that a column may end with them; the validator does not.

    A pattern is matched against JSON's spelling: in it `[^"]` takes the backslash and the quote of
    an escaped quote.
    """
    constraint = VOCABULARY.constraint(source(schema, relax=False))
    assert VOCABULARY.accepts(constraint, text.encode(), Random(0)), "fixed: take it out here"
    found = judge(json.dumps(schema), text)
    assert (found.verdict, found.forbidden) == ("invalid", True)
    assert why in found.why
