"""The mask and the judge of a JSON Schema accept the same texts, but for those that llguidance says
it leaves to the judge. What the judge cannot tell is not claimed.
"""

import json
from typing import Any

import pytest
from llguidance import LLMatcher

from backend.grammar.schema import judge
from backend.grammar.sources import GrammarSource, definition_of
from backend.grammar.vocabulary import compile_matcher, vocabulary_of
from backend.tokenizer import ByteTokenizer

BYTES = vocabulary_of(ByteTokenizer())


def matcher_of(schema: Any) -> LLMatcher:
    source = GrammarSource("json_schema", json.dumps(schema), "test")
    return compile_matcher(definition_of(source), BYTES)


def mask_accepts(schema: Any, text: str) -> bool:
    """Whether a text is whole under llguidance, over bytes."""
    matcher = matcher_of(schema)
    assert not matcher.get_error()
    spelled = list(text.encode())
    return matcher.try_consume_tokens(spelled) == len(spelled) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("schema", "valid", "invalid", "afterwards"),
    [
        ({"type": "string", "format": "password"}, ['"a b"'], ["1"], []),
        ({"type": "string", "format": "uri-reference"}, ['"a"'], ["1"], ['"{"']),
        ({"items": {"type": "array", "uniqueItems": False}}, ["[[1, 1]]"], ["[1]"], []),
        (
            {"oneOf": [{"$ref": "#/$defs/A"}, {"minimum": 5}]}
            | {"$defs": {"A": {"type": "integer"}}, "discriminator": {"propertyName": "kind"}},
            ["1"],
            ['"a'],
            ["7"],
        ),
        # No other spelling slips past a name.
        (
            {"properties": {"a": {"const": 1}, "b\n": {"const": 2}}},
            ['{"a": 1, "b\\n": 2, "c": 3}'],
            [r'{"\u0061": 3}', r'{"b\u000a": 3}', r'{"\u0062\n": 3}'],
            [],
        ),
        ({"type": "integer", "maximum": 2**53}, [str(2**53)], [str(2**53 + 1)], []),
        ({"not": {"const": 1}}, ["2"], ["-"], ["1"]),
        ({"if": {"const": 1}, "then": {"const": 2}}, ["3"], ["-"], ["1"]),
        ({"type": "array", "uniqueItems": True}, ["[1, 2]"], ["1"], ["[1, 1]"]),
        ({"type": "object", "propertyNames": {"const": "a"}}, ['{"a": 1}'], ["1"], ['{"b": 1}']),
    ],
)
def test_mask_and_judge_agree_or_llguidance_names_what_it_leaves_to_the_judge(
    schema: Any, valid: list[str], invalid: list[str], afterwards: list[str]
) -> None:
    for text in [*valid, *invalid, *afterwards]:
        assert mask_accepts(schema, text) == (text not in invalid), text
        judgement = judge(json.dumps(schema), text)
        assert judgement.verdict == ("valid" if text in valid else "invalid"), (text, judgement)
    assert matcher_of(schema).get_grammar_warnings() or not afterwards


@pytest.mark.parametrize(
    ("schema", "text", "verdict", "why"),
    [
        ('{"multipleOf": 0.01}', "19.99", "valid", ""),  # no multiple of 0.01 in binary
        ('{"format": "date-time"}', '"1998-12-31T23:59:60Z"', "valid", ""),  # a leap second
        ('{"format": "int32"}', '"text"', "valid", ""),  # no format that anybody checks
        ("{}", '"open', "invalid", "not JSON: Unterminated string"),
        ("{}", "NaN", "invalid", "not JSON: No NaN"),
        ('{"format": "date-time"}', '"2024-01-01T10:00:60Z"', "invalid", "date-time"),
        ('{"properties": {"a": {"items": {"minimum": 2}}}}', '{"a": [3, 1]}', "invalid", "/a/1: 1"),
        ('{"type": "strin"}', "1", "unchecked", "strin"),
        ('{"$ref": "http://localhost:9/a"}', "1", "unchecked", "localhost"),  # nothing is fetched
        ('{"$ref": "file:///etc/hostname"}', "1", "unchecked", "hostname"),
        ("{}", "[" * 100_000, "unchecked", "recursion"),
        ("{}", "9" * 5000, "unchecked", "digits"),
        ("{}", '"\\ud800"', "unchecked", "surrogates"),
    ],
)
def test_a_judge_says_why_and_claims_nothing_that_it_cannot_tell(
    schema: str, text: str, verdict: str, why: str
) -> None:
    judgement = judge(schema, text)
    assert judgement.verdict == verdict
    assert why in judgement.why
    assert bool(judgement.why) == (verdict != "valid")
