"""Whatever is wrong with an untrusted value, one clause says where, what and what should be."""

import json
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Le, Len
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, field_validator

from backend.untrusted import Untrusted, UntrustedError, Whole, read_as, read_json


class Inner(Untrusted):
    text: Annotated[str, Len(1, 5)] = "a"


class Sent(Untrusted):
    count: Annotated[Whole, Ge(1), Le(16)] = 1
    ratio: float = Field(0.0, title="the ratio")
    flag: bool = False
    inner: list[Inner] = Field([], max_length=2)
    unit: Literal["s", "ms"] = "s"
    none: list[int] = Field([], max_length=0)
    name: str = ""

    @field_validator("name")
    @classmethod
    def _kind(cls, name: str) -> str:
        if name == "bad":
            raise ValueError("bad names are not taken.")
        return name


class Counted(Untrusted, extra="forbid"):
    count: Annotated[int, Le(9)]


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
        ({"none": [1]}, "none", "'none' has 1 entry; it must have at most 0."),
        ({"unit": "h"}, "unit", "'unit' is 'h'; choose from s, ms."),
        ({"name": "bad"}, "name", "'name': bad names are not taken."),
        ([], "", "The form is a list of 0; it must be an object."),
    ],
)
def test_the_first_flaw_of_a_form_names_its_field(wrong: Any, field: str, sentence: str) -> None:
    with pytest.raises(UntrustedError) as refused:
        read_as(Sent, wrong, "The form")
    assert str(refused.value).startswith(sentence)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("data", "clause"),
    [
        (b"{}", "'count' is missing"),
        (b'{"count": 10}', "'count' is 10; it must be at most 9"),
        (b'{"count": 1, "x\\ny": 2}', "'x\\ny' is not known"),
        (b'{"count": 3', "it is not JSON (EOF"),
        (b'{"count": "\\ud800"}', "it is not JSON"),
        (b'{"count": "\xff"}', "it is not JSON"),
        (b'{"parts": ' + b"[" * 5000, "it holds some 5,001 values, and 4,000 are the most"),
        (b'{"parts": ' + b"[" * 3000, "it is not JSON (recursion limit"),
        (b"[" + b"{}," * 10**6 + b"{}]", "some 2,000,002 values, and 4,000 are the most"),
    ],
)
def test_json_is_bounded_before_it_is_parsed(data: bytes, clause: str) -> None:
    """60 MB of `{}` took 6.8 s, and their dicts gigabytes."""
    with pytest.raises(UntrustedError) as refused:
        read_json(Counted, data, "it", 4000)
    assert clause in refused.value.clause
    assert str(refused.value) == f"{refused.value.clause}."


def test_whole_numbers_may_be_written_with_a_point_and_unknown_fields_are_ignored() -> None:
    found = read_json(Sent, json.dumps({"count": 3.0, "ratio": 2, "other": [1]}).encode())
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
