"""The mask and the judge read a JSON Schema as the standard does: each text is accepted by both, by
neither, or by the mask alone in a part that llguidance names. What the judge cannot tell is not
claimed.
"""

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from backend.grammar.schema import Judgement, judge
from backend.grammar.sources import GrammarSource, definition_of
from backend.grammar.vocabulary import compile_matcher, vocabulary_of
from backend.tokenizer import ByteTokenizer

BYTES = vocabulary_of(ByteTokenizer())
CAT = {"properties": {"kind": {"const": "cat", "default": "cat"}, "n": {"type": "integer"}}}
DOG = {"properties": {"kind": {"const": "dog", "default": "dog"}, "n": {"type": "integer"}}}
PETS = {
    "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
    "discriminator": {"propertyName": "kind"},
    "$defs": {"Cat": {"type": "object"} | CAT, "Dog": {"type": "object"} | DOG},
}


def matcher_of(schema: Any) -> LLMatcher:
    source = GrammarSource("json_schema", json.dumps(schema), "test")
    return compile_matcher(definition_of(source), BYTES)


def mask_accepts(schema: Any, text: str) -> bool:
    """Whether a text is whole under llguidance, over bytes."""
    matcher = matcher_of(schema)
    assert not matcher.get_error()
    spelled = list(text.encode())
    return matcher.try_consume_tokens(spelled) == len(spelled) and matcher.is_accepting()


def check(schema: Any, valid: list[str], invalid: list[str], afterwards: list[str]) -> None:
    """Those of `afterwards` are for the judge alone to reject."""
    for text in [*valid, *invalid, *afterwards]:
        assert mask_accepts(schema, text) == (text not in invalid), text
        judgement = judge(json.dumps(schema), text)
        assert judgement.verdict == ("valid" if text in valid else "invalid"), (text, judgement)
    assert matcher_of(schema).get_grammar_warnings() or not afterwards


@pytest.mark.parametrize(
    ("schema", "valid", "invalid", "afterwards"),
    [
        ({"type": "number", "minimum": 0.1}, ["0.1"], ["0.05"], []),
        ({"type": "integer", "multipleOf": 999_983}, ["999983"], ["5"], []),
        ({"type": "string", "format": "password"}, ['"a b"'], ["1"], []),
        ({"type": "string", "format": "uri-reference"}, ['"a"'], ["1"], ['"{"']),
        ({"items": {"type": "array", "uniqueItems": False}}, ["[[1, 1]]"], ["[1]"], []),
        (PETS, ['{"kind": "dog", "n": 1}'], ['{"kind": "cow"}'], ['{"n": 1}']),
        (
            {"type": "object", "properties": {"a": {"type": "null"}}, "minProperties": 1}
            | {"additionalProperties": False},
            ['{"a": null}'],
            ['{"a": 1}', "{}"],
            [],
        ),
        (
            {  # names and data are no keywords, and anything may be referred to
                "properties": {"pattern": {"const": {"pattern": "("}}, "format": {"$ref": "#/x/y"}},
                "required": ["pattern"],
                "x": {"y": {"type": "string", "pattern": "^[ab]$", "format": "byte"}},
            },
            ['{"pattern": {"pattern": "("}, "format": "b"}'],
            ['{"pattern": {"pattern": "("}, "format": "c"}'],
            [],
        ),
        (
            {"type": "object", "patternProperties": {r"^\d$": {"const": 1}}}
            | {"additionalProperties": False},
            ['{"1": 1}'],
            ['{"a": 1}', '{"\u0661": 1}'],
            [],
        ),
        # No other spelling slips past a name.
        (
            {"properties": {"a": {"const": 1}, "b\n": {"const": 2}}},
            ['{"a": 1, "b\\n": 2, "c": 3}'],
            [r'{"\u0061": 3}', r'{"b\u000a": 3}', r'{"\u0062\n": 3}'],
            [],
        ),
        ({"const": 2**53}, [str(2**53)], [str(2**53 + 1), str(2**53 - 1)], []),
        ({"enum": [2.0, -(2**60), 0.1]}, ["2", str(-(2**60)), "0.1"], ["0.2", "2" * 19], []),
        # What a definition is called.
        *(
            (
                {"$ref": f"#/components/schemas/{name}"}
                | {"components": {"schemas": {name: {"type": "string", "format": "byte"}}}},
                ['"~"'],
                ["1"],
                [],
            )
            for name in ("default", "example", "examples")
        ),
    ],
)
def test_mask_and_judge_agree(
    schema: Any, valid: list[str], invalid: list[str], afterwards: list[str]
) -> None:
    check(schema, valid, invalid, afterwards)


#: A schema with each keyword that llguidance does not know, and a text that only that forbids.
UNKNOWN: list[tuple[dict[str, Any], str]] = [
    ({"not": {"const": 1}}, "1"),
    ({"if": {"const": 1}, "then": {"const": 2}}, "1"),
    ({"type": "array", "contains": {"const": 1}}, "[2]"),
    ({"type": "array", "uniqueItems": True}, "[1, 1]"),
    ({"type": "array", "prefixItems": [{"const": 1}], "unevaluatedItems": False}, "[1, 2]"),
    ({"type": "object", "propertyNames": {"const": "a"}}, '{"b": 1}'),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, '{"a": 1}'),
    ({"type": "object", "properties": {"a": {}}, "unevaluatedProperties": False}, '{"b": 1}'),
]


@pytest.mark.parametrize(("schema", "text"), UNKNOWN)
def test_what_llguidance_does_not_know_is_named_and_judged(
    schema: dict[str, Any], text: str
) -> None:
    check(schema, [], [], [text])


@pytest.mark.parametrize(
    ("pattern", "matching", "others", "afterwards"),
    [
        (r"^[\w.]+$", ["ab."], ["\u00e9", "-"], []),
        (r"^\/\-\p{Lu}$", ["/-\u00c4"], ["/-a"], []),
        (r"^\d\w$", ["1a"], ["\u06611", "1\u00e9"], []),
        ("^a+?(?<b>c)$", ["aac"], ["a"], []),
        # Anchors at the ends, also of alternatives.
        ("^a|b$", ["ax", "xb"], ["xax"], []),
    ],
)
def test_patterns_are_matched_or_left_to_the_judge(
    pattern: str, matching: list[str], others: list[str], afterwards: list[str]
) -> None:
    lists = ([json.dumps(text) for text in texts] for texts in (matching, others, afterwards))
    spelled = [[_as_written(text) for text in texts] for texts in lists]
    schema = {"type": "string", "pattern": pattern}
    check(schema, *spelled)
    for draft in ("04", "06", "07"):
        check(schema | {"$schema": f"http://json-schema.org/draft-{draft}/schema#"}, *spelled)


def _as_written(text: str) -> str:
    """JSON as the mask writes it: escapes for what needs one."""
    return json.dumps(json.loads(text), ensure_ascii=False)


NEAR = [0, 10, 2**31, 2**53 - 600]
WHOLE = st.builds(
    lambda sign, near, by: sign * (near + by),
    *(st.sampled_from([1, -1]), st.sampled_from(NEAR), st.integers(-300, 300)),
)


@settings(max_examples=200)
@given(WHOLE, WHOLE, WHOLE, st.booleans())
def test_a_range_of_integers_is_exact(low: int, high: int, number: int, exclusive: bool) -> None:
    assume(low + 2 <= high)
    names = ("exclusiveMinimum", "exclusiveMaximum") if exclusive else ("minimum", "maximum")
    schema = {"type": "integer", names[0]: low, names[1]: high}
    accepted = mask_accepts(schema, str(number))
    within = low + exclusive <= number <= high - exclusive
    assert (judge(json.dumps(schema), str(number)).verdict == "valid") == within
    assert accepted == within


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ('{"multipleOf": 0.01}', "19.99"),  # no multiple of 0.01 in binary
        ('{"multipleOf": 0.01}', "123456789012345678901234567890.01"),
        ('{"type": "integer"}', "1.0"),
        ('{"format": "date-time"}', '"1998-12-31T23:59:60Z"'),  # there was a leap second
        ('{"format": "int32"}', '"text"'),  # no format that anybody checks
        (r'{"pattern": "^\\p{L}[a-z\\-]$"}', '"\u00e9-"'),
        ('{"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}', "null"),
        ('{"uniqueItems": true}', "[1, 2]"),
    ],
)
def test_valid_texts_are_called_valid(schema: str, text: str) -> None:
    assert judge(schema, text) == Judgement("valid")


@pytest.mark.parametrize(
    ("schema", "text", "why"),
    [
        ("{}", '"open', "not JSON: Unterminated string"),
        ("{}", "1 2", "not JSON"),
        ('{"multipleOf": 0.01}', "19.995", "not a multiple of 0.01"),
        ('{"format": "date-time"}', '"2024-01-01T10:00:60Z"', "date-time"),
        (r'{"pattern": "^\\d\\S$"}', '"\u0663a"', r'does not match "^\d\S$"'),
        ('{"properties": {"a": {"items": {"minimum": 2}}}}', '{"a": [3, 1]}', "at /a/1: 1 is less"),
        ('{"uniqueItems": true}', "[1, 1]", "non-unique"),
    ],
)
def test_invalid_texts_are_told_why_and_where(schema: str, text: str, why: str) -> None:
    judgement = judge(schema, text)
    assert judgement.verdict == "invalid"
    assert why in judgement.why


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number", "minimum": 5e-324},
        {"type": "integer", "maximum": 2**63 - 1, "minimum": -(2**63)},
        {"type": "number", "multipleOf": 0.07},
        {"type": "string", "pattern": "^(?!a)"},
        {"minProperties": 1, "properties": 5, "required": 5},
        {"pattern": [], "multipleOf": "a", "enum": 1},
    ],
)
def test_what_llguidance_cannot_follow_is_refused(schema: Any) -> None:
    assert matcher_of(schema).get_error()


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ('{"type": "strin"}', "1"),
        ('{"$ref": "http://localhost:9/a"}', "1"),  # nothing is fetched
        ('{"$ref": "file:///etc/hostname"}', "1"),
        ("{}", "[" * 100_000),
        ("{}", "9" * 5000),
        ("{}", '"\\ud800"'),
    ],
)
def test_what_the_validator_cannot_tell_is_not_claimed(schema: str, text: str) -> None:
    judgement = judge(schema, text)
    assert judgement.verdict == "unchecked"
    assert judgement.why
