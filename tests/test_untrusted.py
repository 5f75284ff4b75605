"""Whatever is wrong with an untrusted value, one clause says where, what and what should be."""

import json
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Le, Len
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, field_validator
from race_records import ANYTHING

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


def test_unknown_fields_are_ignored() -> None:
    sent = {"count": 3, "ratio": 2.0}
    assert read_json(Sent, json.dumps(sent | {"other": [1]}).encode()) == read_as(Sent, sent)


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
