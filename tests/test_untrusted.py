"""Whatever is wrong with an untrusted value, one clause says where, what and what should be."""

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator

from backend.errors import DerbyError
from backend.untrusted import read, read_json


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
        ({"count": "many"}, "'count' is 'many', but should be a valid integer"),
        ({"count": 1.0}, "'count' is 1.0, but should be a valid integer"),
        ({"count": 10}, "'count' is 10, but should be less than or equal to 9"),
        ({"count": 1, "more": 2}, "'more' is not known"),
        ({"count": 1, "x\ny": 2}, "'x\\ny' is not known"),
        ({"count": 1, "name": "a" * 99}, f"is '{'a' * 53} [...], but should have at most 3"),
        ({"count": 1, "name": "bad"}, "'name': bad names are not taken"),
        ({"count": 1, "parts": [1, {}]}, "'parts.1' is a dict of 0, but should be a valid number"),
        ({"count": 1, "unit": "h"}, "'unit' is 'h', but should be 's' or 'ms'"),
        ([1], "it is a list of 1, but should be a valid dictionary"),
    ],
)
def test_a_wrong_value_is_said_in_one_clause(value: object, said: str) -> None:
    with pytest.raises(DerbyError) as caught:
        read(READER, value, refusal)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_right_is_read() -> None:
    assert read(READER, {"count": 2, "parts": [1, 2.5]}, refusal).parts == [1, 2.5]
    assert read_json(READER, b'{"count": 3}', refusal, 10).count == 3


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
