"""Events are plain values: any of them survives JSON, anything else is refused."""

import json
from math import inf
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.events import (
    Conditions,
    CostsKnown,
    Decided,
    Event,
    Failed,
    Fed,
    Filled,
    Finished,
    Judged,
    Prefilled,
    Prepared,
    Preparing,
    Reason,
    Resumed,
    Saved,
    Shifted,
    Started,
    Step,
    from_json,
    to_json,
)

NUMBERS = st.integers(0, 10**9)
SECONDS = st.floats(0, 1e6)
SPANS = st.lists(st.tuples(st.text(), st.text()).map(list), max_size=4)
MADE = {
    Preparing: st.builds(Preparing, st.text()),
    Conditions: st.builds(Conditions, SECONDS, SECONDS, SECONDS, SECONDS, NUMBERS, NUMBERS),
    Started: st.builds(
        Started,
        NUMBERS,
        NUMBERS,
        st.text(),
        st.text(),
        st.dictionaries(st.text(), st.text(), max_size=4),
        st.booleans(),
    ),
    Prepared: st.builds(Prepared, NUMBERS, NUMBERS, SECONDS),
    CostsKnown: st.builds(
        CostsKnown, NUMBERS, st.lists(NUMBERS), st.lists(SECONDS), SECONDS, SECONDS
    ),
    Decided: st.builds(
        Decided,
        NUMBERS,
        st.dictionaries(st.text(), NUMBERS),
        SECONDS,
        st.text(),
        st.lists(st.text()),
    ),
    Resumed: st.builds(Resumed, NUMBERS, st.lists(NUMBERS), SPANS, NUMBERS, SECONDS),
    Fed: st.builds(Fed, NUMBERS, NUMBERS, SPANS, SECONDS),
    Filled: st.builds(Filled, NUMBERS, st.text(), st.text(), SPANS),
    Shifted: st.builds(Shifted, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.text(), SECONDS),
    Judged: st.builds(
        Judged,
        NUMBERS,
        st.sampled_from(("valid", "invalid", "unchecked")),
        st.text(),
        st.text(),
        st.lists(st.text()),
        st.booleans(),
    ),
    Saved: st.builds(Saved, NUMBERS, st.text()),
    Prefilled: st.builds(Prefilled, NUMBERS, NUMBERS, NUMBERS, SECONDS),
    Step: st.builds(
        Step,
        column=NUMBERS,
        tokens=st.lists(NUMBERS),
        origins=st.lists(st.text()),
        gaps=st.lists(st.one_of(SECONDS, st.just(inf))),
        spans=SPANS,
        rows=NUMBERS,
        drafted=NUMBERS,
        accepted=NUMBERS,
        seconds=st.dictionaries(st.text(), SECONDS),
        overlaps=st.lists(st.floats(0, 1), max_size=4),
    ),
    Finished: st.builds(Finished, NUMBERS, st.sampled_from(get_args(Reason)), SPANS),
    Failed: st.builds(Failed, NUMBERS, st.text()),
}
EVENTS = st.one_of(*MADE.values())


def test_every_kind_is_tried_here() -> None:
    assert set(MADE) == set(get_args(Event))


@given(EVENTS)
def test_any_event_survives_json(event: Event) -> None:
    """A token without a runner-up has an infinite gap, which JSON cannot say: readers in other
    languages were given the word Infinity.
    """
    text = json.dumps(to_json(event), allow_nan=False)
    assert from_json(json.loads(text)) == event


@given(EVENTS, st.data())
def test_an_event_with_a_field_too_few_or_too_many_is_refused(
    event: Event, data: st.DataObject
) -> None:
    value = to_json(event)
    missing = dict(value)
    del missing[data.draw(st.sampled_from(sorted(value)))]
    for wrong in (missing, {**value, "extra": 1}, {**value, "kind": "Other"}):
        with pytest.raises(ValueError, match="not an event"):
            from_json(wrong)


@pytest.mark.parametrize(
    "value",
    [{}, {"kind": []}, {"kind": None}, {"kind": "Step"}, {"kind": "dict"}, [], None, "Failed", 3],
)
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="not an event"):
        from_json(value)
