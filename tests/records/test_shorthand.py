"""A step in shorthand is the step again."""

from typing import Any

import pytest
from hypothesis import given
from recordings import EVENTS, EVERY, race_of

from backend.events import Event, Step, to_json
from backend.records.shorthand import SHORT, long, short


@given(EVENTS)
def test_any_event_comes_back(event: Event) -> None:
    said = to_json(event)
    assert long(short(said)) == said


def test_the_steps_of_races_are_all_short() -> None:
    """A text of several bytes a character leaves tokens without a span."""
    for record in (race_of(EVERY), race_of("grammar speculative:k=4", temperature=0.9)):
        steps = [event for event in record.events if isinstance(event, Step)]
        assert steps
        for step in steps:
            made = short(to_json(step))
            assert made["kind"] == SHORT
            assert len(str(made)) < len(str(to_json(step)))


USUAL: dict[str, Any] = short(to_json(next(e for e in race_of("kv").events if isinstance(e, Step))))


@pytest.mark.parametrize(
    "wrong",
    [
        {"forced": 10**9},
        {"forced": -1},
        {"missed": -(10**9)},
        {"missed": 10**9},
        {"missed": 0.5},
        {"texts": 7},
        {"seconds": {}},
        {"seconds": {"beyond": "many"}},
        {"seconds": {"beyond": [1]}},
        {"more": "many"},
    ],
)
def test_shorthand_that_nobody_made_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, ArithmeticError)):
        long(USUAL | wrong)
