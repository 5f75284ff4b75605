"""Finished texts are judged by a validator that is not ours; what it cannot tell is not claimed."""

import pytest

from backend.grammar.schema import Judgement, judge


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
        ('{"uniqueItems": true, "x-guidance": {"lenient": true}}', "[1, 2]"),
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
        ('{"uniqueItems": true, "x-guidance": {"lenient": true}}', "[1, 1]", "non-unique"),
    ],
)
def test_invalid_texts_are_told_why_and_where(schema: str, text: str, why: str) -> None:
    judgement = judge(schema, text)
    assert judgement.verdict == "invalid"
    assert why in judgement.why


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
