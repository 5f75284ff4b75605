"""Events are plain values: any of them survives JSON, anything else is refused."""

import json
from dataclasses import MISSING, fields, replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from recordings import EVENTS as RECORDED

from backend.events import Event, Preparing, Proposed, from_json, to_json

#: Of no record, and so nothing that a schema says.
OTHERS = [Preparing("Wait.")]
EVENTS = st.one_of(RECORDED, st.sampled_from(OTHERS))


@given(EVENTS)
def test_any_event_survives_json(event: Event) -> None:
    """A token without a runner-up has an infinite gap, which JSON cannot say: readers in other
    languages were given the word Infinity.
    """
    text = json.dumps(to_json(event), allow_nan=False)
    assert from_json(json.loads(text)) == event


def needed(event: Event) -> list[str]:
    """The event's fields without a default."""
    return [f.name for f in fields(event) if f.default is f.default_factory is MISSING]


@given(EVENTS, st.data())
def test_an_event_with_a_field_too_few_or_too_many_is_refused(
    event: Event, data: st.DataObject
) -> None:
    value = to_json(event)
    missing = dict(value)
    del missing[data.draw(st.sampled_from(["kind", *needed(event)]))]
    for wrong in (missing, {**value, "extra": 1}, {**value, "kind": "Other"}):
        with pytest.raises(ValueError, match="not an event"):
            from_json(wrong)


@given(EVENTS)
def test_what_an_earlier_version_did_not_say_has_its_default(event: Event) -> None:
    usual = {
        f.name: f.default_factory() if callable(f.default_factory) else f.default
        for f in fields(event)
        if f.name not in needed(event)
    }
    kept = ["kind", *needed(event)]
    said = {name: value for name, value in to_json(event).items() if name in kept}
    try:
        wanted = replace(event, **usual)
    except ValueError:
        assume(False)  # a proposal whose parts fit together with none left out
    assert from_json(said) == wanted


@pytest.mark.parametrize(
    "changed",
    [
        {"parents": [-1, 1, 0]},
        {"parents": [-1, 0]},
        {"path": [1, 2]},
        {"path": [3]},
        {"path": [-1]},
        {"cut": 1},
        {"cut": -1},
        {"cut": 9},
        {"by": [["one", 2]]},
        {"by": [["one", 10**12]]},
        {"by": [["one", -1], ["two", 4]]},
        {"allowed": [1, 2, 3]},
        {"top": [[["a", 1.0]]]},
    ],
)
def test_a_proposal_that_does_not_fit_together_is_refused(changed: dict[str, Any]) -> None:
    """A page that indexed what a recording says would fail where it is looked at."""
    sound = Proposed(0, ["a", "b", "c"], [-1, 0, 0], [["one", 1], ["two", 2]], [0, 2], "d")
    assert sound.committed == ["a", "c", "d"]
    with pytest.raises(ValueError, match="does not fit together"):
        from_json({**to_json(sound), **changed})


@pytest.mark.parametrize(
    "value",
    [{}, {"kind": []}, {"kind": None}, {"kind": "Step"}, {"kind": "dict"}, [], None, "Failed", 3],
)
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="not an event"):
        from_json(value)
