"""Rounding shortens a record and changes no figure."""

import json
from math import inf, isclose

from hypothesis import given
from hypothesis import strategies as st
from lib import drafters, run

from backend.decoding.digits import rounded, rounded_parts, rounded_value
from backend.engines.fake import FakeEngine
from backend.types import Request

PARTS = ("draft", "mask", "forward", "rest")
SECONDS = st.floats(0, 3)


@given(SECONDS)
def test_seconds_lose_less_than_a_clock_can_tell(seconds: float) -> None:
    step = 1e-5 if seconds >= 0.01 else 1e-6 if seconds >= 1e-5 else 1e-7
    assert abs(rounded(seconds) - seconds) <= step / 2 * 1.001
    assert rounded(rounded(seconds)) == rounded(seconds)


@given(st.lists(SECONDS, min_size=4, max_size=4))
def test_parts_add_up_to_the_total_and_the_total_is_true(values: list[float]) -> None:
    seconds = dict(zip(PARTS, values, strict=True)) | {"total": sum(values)}
    found = rounded_parts(seconds)
    assert found.keys() == seconds.keys()
    assert found["total"] == rounded(seconds["total"])
    assert isclose(sum(found[part] for part in PARTS), found["total"], abs_tol=1e-12)
    step = 1e-5 if seconds["total"] >= 0.01 else 1e-6
    assert all(abs(found[part] - seconds[part]) <= 2.5 * step for part in PARTS)


@given(st.one_of(st.floats(1e-9, 1e9), st.just(inf)))
def test_values_keep_three_digits(value: float) -> None:
    assert isclose(rounded_value(value), value, rel_tol=5.001e-3)
    assert len(f"{rounded_value(value):.15g}".replace(".", "").strip("0").split("e")[0]) <= 3


def test_every_event_of_a_column_is_short() -> None:
    """Sixteen digits a figure made a step of nine parts and gaps 600 characters long."""
    engine = FakeEngine()
    for make in drafters(engine, Request("x").sampling).values():
        for step in run(engine, Request("x", max_new_tokens=30), make()).steps:
            figures = [*step.seconds.values(), *step.masks, *step.gaps, *step.overlaps]
            assert all(len(json.dumps(figure)) <= 8 for figure in figures), figures
