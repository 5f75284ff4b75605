"""Whatever is wrong with an untrusted value, one clause says where, what and what should be."""

import json
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Le, Len
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, field_validator

from backend.untrusted import Untrusted, UntrustedError, read_as, read_json


class Inner(Untrusted):
    text: Annotated[str, Len(1, 5)] = "a"


class Sent(Untrusted):
    count: Annotated[int, Ge(1), Le(16)] = 1
    ratio: float = 0.0
    flag: bool = False
    inner: list[Inner] = Field([], max_length=2)
    unit: Literal["s", "ms"] = "s"
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
    ("wrong", "where", "limit"),
    [
        ({"count": 10**400}, f"'count' is 1{'0' * 53} [...]:", "16"),
        ({"count": True}, "'count' is True:", "valid integer"),
        ({"inner": [{}, {"text": ""}]}, "'inner.1.text' is '':", "at least 1"),
        ({"inner": [{}, {}, {}]}, "'inner' is a list of 3:", "at most 2"),
        ({"name": "bad"}, "'name' is 'bad':", "bad names are not taken"),
        ([], "The form is a list of 0:", "dictionary"),
    ],
)
def test_the_first_flaw_of_a_form_is_a_place_a_value_and_what_must_be(
    wrong: Any, where: str, limit: str
) -> None:
    with pytest.raises(UntrustedError) as refused:
        read_as(Sent, wrong, "The form")
    assert str(refused.value).startswith(where)
    assert limit in str(refused.value)


@pytest.mark.parametrize(
    ("data", "clause"),
    [
        (b"{}", "'count': Field required"),
        (b'{"count": 10}', "'count' is 10: Input should be less than or equal to 9"),
        (b'{"count": 1, "x\\ny": 2}', "'x\\ny' is 2: Extra inputs are not permitted"),
        (b'{"count": 3', "Invalid JSON: EOF"),
        (b'{"parts": ' + b"[" * 3000, "Invalid JSON: recursion limit"),
    ],
)
def test_what_is_no_json_of_the_kind_is_one_clause(data: bytes, clause: str) -> None:
    with pytest.raises(UntrustedError) as refused:
        read_json(Counted, data, "it")
    assert clause in refused.value.clause
    assert str(refused.value) == f"{refused.value.clause}."


def test_unknown_fields_are_ignored() -> None:
    sent = {"count": 3, "ratio": 2.0}
    assert read_json(Sent, json.dumps(sent | {"other": [1]}).encode()) == read_as(Sent, sent)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
)


@given(ANYTHING | st.dictionaries(st.sampled_from(sorted(Sent.model_fields)), ANYTHING))
def test_anything_is_read_or_refused_in_one_short_sentence(value: Any) -> None:
    try:
        sent = read_as(Sent, value)
    except UntrustedError as error:
        sentence = str(error)
    else:
        assert read_as(Sent, sent.model_dump()) == sent
        return
    assert "\n" not in sentence
    assert len(sentence) < 250
