"""Whatever is wrong with an untrusted value, one clause says where, what and what should be."""

import json
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Le, Len
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator

from backend.errors import DerbyError
from backend.untrusted import (
    Untrusted,
    UntrustedError,
    Whole,
    read_as,
    read_json,
    read_json_as,
)


class Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    count: Annotated[int, Field(ge=1, le=9)]
    name: Annotated[str, Field(max_length=3)] = ""
    parts: list[float] = []
    unit: Literal["s", "ms"] = "s"

    @field_validator("name")
    @classmethod
    def _kind(cls, name: str) -> str:
        if name == "bad":
            raise ValueError("bad names are not taken.")
        return name


READER = TypeAdapter(Asked)


def refusal(why: str) -> DerbyError:
    return DerbyError(f"No: {why}.")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({}, "'count' is missing"),
        ({"count": "many"}, "'count' is 'many'; it must be a whole number"),
        ({"count": 1.0}, "'count' is 1.0; it must be a whole number"),
        ({"count": 10}, "'count' is 10; it must be at most 9"),
        ({"count": 1, "more": 2}, "'more' is not known"),
        ({"count": 1, "x\ny": 2}, "'x\\ny' is not known"),
        ({"count": 1, "name": "a" * 99}, "'name' has 99 characters; it must have at most 3"),
        ({"count": 1, "name": "bad"}, "'name': bad names are not taken"),
        ({"count": 1, "parts": [1, {}]}, "'parts.1' is a dict of 0; it must be a number"),
        ({"count": 1, "unit": "h"}, "'unit' is 'h'; choose from s, ms"),
        ([1], "it is a list of 1; it must be an object"),
    ],
)
def test_a_wrong_value_is_said_in_one_clause(value: object, said: str) -> None:
    with pytest.raises(DerbyError) as caught:
        read_json(READER, json.dumps(value).encode(), refusal, 4000)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_right_is_read() -> None:
    found = read_json(READER, b'{"count": 2, "parts": [1, 2.5]}', refusal, 10)
    assert (found.count, found.parts) == (2, [1, 2.5])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"count": 3', "it is not JSON (EOF"),
        (b'{"count": "\\ud800"}', "it is not JSON"),
        (b'{"count": "\xff"}', "it is not JSON"),
        (b'{"parts": ' + b"[" * 5000, "values, and 4,000 are the most"),
        (b'{"parts": ' + b"[" * 3000, "it is not JSON (recursion limit"),
        (b"[" + b"{}," * 10**6 + b"{}]", "some 2,000,002 values, and 4,000 are the most"),
    ],
)
def test_json_is_bounded_before_it_is_parsed(data: bytes, said: str) -> None:
    """60 MB of `{}` took 6.8 s, and their dicts gigabytes."""
    with pytest.raises(DerbyError) as caught:
        read_json(READER, data, refusal, 4000)
    assert said in str(caught.value)


class Inner(Untrusted):
    text: Annotated[str, Len(1, 5)] = "a"


class Sent(Untrusted):
    count: Annotated[Whole, Ge(1), Le(16)] = 1
    ratio: float = Field(0.0, title="the ratio")
    flag: bool = False
    inner: list[Inner] = Field([], max_length=2)


@pytest.mark.parametrize(
    ("wrong", "field", "sentence"),
    [
        ({"count": 10**400}, "count", f"'count' is 1{'0' * 53} [...]; it must lie between 1 and"),
        ({"count": True}, "count", "'count' is True; it must be a whole number."),
        ({"count": "3"}, "count", "'count' is '3'; it must be a whole number."),
        ({"count": 1.5}, "count", "'count' is 1.5; it must be a whole number."),
        ({"count": None}, "count", "'count' is empty; it must be a whole number."),
        ({"ratio": "hot"}, "ratio", "the ratio is 'hot'; it must be a number."),
        ({"ratio": float("nan")}, "ratio", "the ratio is nan; it must be a finite number."),
        ({"flag": 1}, "flag", "'flag' is 1; it must be true or false."),
        ({"inner": [{}, {"text": ""}]}, "inner", "'inner.1.text' has 0 characters; it must have"),
        ({"inner": [{"text": "\ud800"}]}, "inner", "'inner.0.text' contains half of a surrogate"),
        ({"inner": [{}, {}, {}]}, "inner", "'inner' has 3 entries; it must have at most 2."),
        ([], "", "The form is a list of 0; it must be an object."),
    ],
)
def test_the_first_flaw_of_a_form_names_its_field(wrong: Any, field: str, sentence: str) -> None:
    with pytest.raises(UntrustedError) as refused:
        read_as(Sent, wrong, "The form")
    assert str(refused.value).startswith(sentence)
    assert refused.value.field == field


def test_whole_numbers_may_be_written_with_a_point_and_unknown_fields_are_ignored() -> None:
    found = read_json_as(Sent, json.dumps({"count": 3.0, "ratio": 2, "other": [1]}).encode())
    assert (found.count, type(found.count), found.ratio) == (3, int, 2.0)
    assert found == read_as(Sent, {"count": 3, "ratio": 2.0})


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
)


@given(ANYTHING | st.dictionaries(st.sampled_from(sorted(Sent.model_fields)), ANYTHING))
def test_anything_is_read_or_refused_in_one_short_sentence(value: Any) -> None:
    try:
        found = read_as(Sent, value)
    except UntrustedError as error:
        sentence = str(error)
    else:
        assert read_as(Sent, found.model_dump()) == found
        return
    assert "\n" not in sentence
    assert len(sentence) < 250
