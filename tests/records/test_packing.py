"""Whatever JSON values are packed come back; what nobody packed is refused before it grows."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.records.packing import HIGH, LOW, TEXTS, Planes, pack, unpack

NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(0, 9999).map(lambda value: value / 1e5),
    st.integers(0, 9999).map(lambda value: value / 1e5 + 7),
    st.integers(100, 999).flatmap(lambda value: st.sampled_from((value / 10, value / 1e4))),
)
WHOLE = st.one_of(st.integers(0, 300), st.integers(-(2**63), 2**63), st.integers())
SCALARS = st.one_of(NUMBERS, WHOLE, st.booleans(), st.none(), st.text())
ROWS = st.fixed_dictionaries({"a": NUMBERS, "b": st.lists(WHOLE), "c": st.text()})
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)
LISTS = st.one_of(*map(st.lists, (NUMBERS, WHOLE, SCALARS, ROWS, ANYTHING, st.lists(NUMBERS))))


def packed(values: list[Any]) -> tuple[Any, Planes]:
    planes = Planes()
    return pack(values, planes), planes


def read(form: Any, count: int, planes: Planes, left: int = 10**6) -> list[Any]:
    return unpack(form, count, Planes(*(bytes(kind) for kind in planes.kinds), left))


@given(LISTS)
def test_any_values_come_back_as_they_were(values: list[Any]) -> None:
    form, planes = packed(values)
    again = read(json.loads(json.dumps(form)), len(values), planes)
    assert again == values
    assert [type(value) is bool for value in again] == [type(value) is bool for value in values]


@given(LISTS.filter(bool), st.data())
def test_bytes_that_are_missing_are_missed(values: list[Any], data: st.DataObject) -> None:
    form, planes = packed(values)
    full = [kind for kind in planes.kinds if kind]
    if full:
        data.draw(st.sampled_from(full)).pop()
        with pytest.raises((ValueError, LookupError)):
            read(form, len(values), planes)


def test_numbers_of_few_digits_take_few_bytes() -> None:
    form, planes = packed([float(f"0.0{2356 + step}") for step in range(100)])
    assert form == ["f", -5, 2356, 1]
    assert [len(kind) for kind in planes.kinds] == [0, 100, 0]


def test_numbers_of_few_digits_over_many_scales_have_an_exponent_each() -> None:
    gaps = [float(f"{100 + 7 * step}e{step % 5 - 5}") for step in range(45)]
    form, planes = packed(gaps)
    assert form == ["d", 100, 2, ["i", -5, 1]]
    assert [len(kind) for kind in planes.kinds] == [0, 90, 45]


def test_what_is_unlike_is_kept_apart() -> None:
    form, planes = packed([{"text": f"token {n}", "id": n * 700} for n in range(50)])
    assert form == ["o", {"text": ["s", ["i", 7, 1]], "id": ["i", 0, 2]}]
    assert planes.kinds[TEXTS].startswith(b"token 0token 1")
    assert len(planes.kinds[HIGH]) == 100
    assert len(planes.kinds[LOW]) == 50


def test_what_all_have_in_common_takes_no_bytes() -> None:
    form, planes = packed([{"masks": [], "calls": 0}] * 1000)
    assert form == ["t", {"masks": [], "calls": 0}]
    assert not any(planes.kinds)


BOMBS = [
    (["t", "a" * 1000], 1001),
    (["t", *range(300)], 10**6 + 1),
    (["l", ["t", 10**9], ["t", 0]], 2),
    (["l", ["t", 2**70], ["t", 0]], 1),
    (["l", ["t", 1000], ["l", ["t", 1000], ["t", 0]]], 1000),
    (["o", {"a": ["t", 0], "b": ["t", "b" * 10**4]}], 200),
]


@pytest.mark.parametrize(("form", "count"), BOMBS)
def test_what_would_grow_is_refused_before_it_does(form: Any, count: int) -> None:
    with pytest.raises(ValueError, match="too much"):
        read(form, count, Planes())


WRONG = [
    None,
    [],
    7,
    "t",
    ["x"],
    ["t"],
    [["t"], 1],
    ["o", {}],
    ["o", []],
    ["l", ["t", -1], ["t", 0]],
    ["l", ["t", 1.0], ["t", 0]],
    ["l", ["t", True], ["t", 0]],
    ["s", ["t", -1]],
    ["i", 0, 0],
    ["i", 0, 9],
    ["i", 0, 10**9],
    ["i", 0, 1.5],
    ["i", "0", 1],
    ["i", 0.5, 1],
    ["f", 0.5, 0, 1],
    ["d", 0, 1, ["t", None]],
    ["n", ["t", True], ["j"]],
    ["j", 1],
]


@pytest.mark.parametrize("form", WRONG, ids=str)
def test_a_form_that_nobody_made_is_refused(form: Any) -> None:
    planes = Planes(b"abcdefgh", b"abcdefgh", b"abcdefgh", 100)
    with pytest.raises((ValueError, TypeError, LookupError, AttributeError)):
        unpack(form, 2, planes)
