"""Finished texts are judged by a validator that is not ours; what it cannot tell is not claimed."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from backend.grammar.grammars import JUDGING_DEADLINE, JUDGING_MEMORY
from backend.grammar.sandbox.parent import Sandbox
from backend.grammar.schema.validity import VALID, asserted, judge, unchecked
from backend.grammar.sources import GrammarSource

#: It takes for ever on many letters "a" before another one.
HOSTILE = {"not": {"pattern": "^(a|a)*(?=x)$"}}


def schema(value: Any) -> GrammarSource:
    return GrammarSource("json_schema", json.dumps(value), "judged")


@pytest.fixture(scope="module")
def judging() -> Iterator[Sandbox]:
    with closing(Sandbox(JUDGING_DEADLINE, JUDGING_MEMORY)) as made:
        yield made


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ('{"multipleOf": 0.01}', "19.99"),  # no multiple of 0.01 in binary
        ('{"multipleOf": 0.01}', "123456789012345678901234567890.01"),
        ('{"type": "integer"}', "1.0"),
        ('{"const": 1}', "1.0"),
        ('{"format": "date-time"}', '"1998-12-31T23:59:60Z"'),  # there was a leap second
        ('{"format": "int32"}', '"text"'),  # no format that anybody checks
        (r'{"pattern": "^\\p{L}[a-z\\-]$"}', '"\u00e9-"'),
        ('{"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}', "null"),
        ('{"$schema": "http://json-schema.org/draft-07/schema#", "type": "null"}', "null"),
    ],
)
def test_valid_texts_are_called_valid(text: str, written: str) -> None:
    assert judge(text, written) == VALID


@pytest.mark.parametrize(
    ("text", "written", "where", "why"),
    [
        ("{}", '"open', "", "not JSON: Unterminated string"),
        ("{}", '{"a": 1, "\\u0061": 2}', "", '"a" occurs twice'),
        ("{}", "NaN", "", "NaN is not JSON"),
        ("{}", "1 2", "", "not JSON"),
        ('{"multipleOf": 0.01}', "19.995", "", "not a multiple of 0.01"),
        ('{"format": "date-time"}', '"2024-01-01T10:00:60Z"', "", "date-time"),
        ('{"pattern": "^a$"}', '"a\\n"', "", "does not match"),
        (r'{"pattern": "^\\d$"}', '"\u0663"', "", "does not match"),
        ('{"properties": {"a/b": {"items": {"minimum": 2}}}}', '{"a/b": [3, 1]}', "/a~1b/1", "1"),
        ('{"unevaluatedProperties": false}', '{"x": 1}', "", "x"),
    ],
)
def test_invalid_texts_are_told_why_and_where(
    text: str, written: str, where: str, why: str
) -> None:
    found = judge(text, written)
    assert (found.verdict, found.pointer) == ("invalid", where)
    assert why in found.why


@pytest.mark.parametrize(
    ("text", "written", "why"),
    [
        ('{"type": "strin"}', "1", "refuses the schema"),
        ('{"$ref": "http://localhost:9/a"}', "1", "Retrieval is disabled"),
        ('{"$ref": "file:///etc/hostname"}', "1", "Retrieval is disabled"),
        ('{"$schema": "http://localhost:9/a"}', "1", "Unknown meta-schema"),
        ("not JSON", "1", "cannot read"),
        ("{}", "[" * 100_000, "nested too deeply"),
        ("{}", "9" * 5000, "too many digits"),
        ("{}", '"\\ud800"', "surrogate"),
    ],
)
def test_what_the_validator_cannot_tell_is_not_claimed(text: str, written: str, why: str) -> None:
    """A reference is never fetched, and a pattern that it cannot try says nothing of the text."""
    found = judge(text, written)
    assert found.verdict == "unchecked"
    assert why in found.why


def test_formats_that_are_checked() -> None:
    assert all(map(asserted, ("date-time", "email", "uri", "uuid", "ipv6", "regex")))
    assert not any(map(asserted, ("int32", "password", "", "\ud800")))


def test_a_pattern_that_takes_for_ever_is_stopped_and_nothing_is_claimed() -> None:
    """The schema is anybody's. Had the pattern given up, its `not` would have been called valid."""
    with closing(Sandbox(0.3, JUDGING_MEMORY)) as judging:
        for _ in range(2):
            found = judging.judge(schema(HOSTILE), json.dumps("a" * 60 + "b"))
            assert found is not None
            assert (found.verdict, found.why) == (
                "unchecked",
                "checking it takes more than 0.3 s or 512 MiB of memory",
            )
        assert judging.judge(schema(HOSTILE), '"b"') == VALID


def test_memory_is_bounded_and_nothing_is_claimed() -> None:
    with closing(Sandbox(JUDGING_DEADLINE, 16 << 20)) as judging:
        found = judging.judge(schema({}), f"[{'[],' * 1_000_000}[]]")
        assert found is not None
        assert found.verdict == "unchecked"
        assert judging.judge(schema({}), "[]") == VALID


def test_only_schemas_are_judged(judging: Sandbox) -> None:
    assert judging.judge(GrammarSource("lark", 'start: "a"', "letter"), "a") is None
    assert judging.judge(schema({"type": "null"}), "null") == VALID


def test_a_text_whose_race_is_stopped_is_no_longer_judged(judging: Sandbox) -> None:
    """Stop waited for the verdict, or cost the worker and with it the loaded models."""
    found = judging.judge(schema(HOSTILE), json.dumps("a" * 60 + "b"), lambda: True)
    assert found == unchecked("the race was stopped")
    assert judging.judge(schema({}), "[]") == VALID
