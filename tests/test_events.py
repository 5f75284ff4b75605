"""Events are plain values: any of them survives JSON, anything else is refused."""

import json
from dataclasses import MISSING, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from race_records import EVENTS as RECORDED

from backend.events import Event, Preparing, Proposed, from_json, to_json

EVENTS = st.one_of(RECORDED, st.just(Preparing("Wait.")))


@given(EVENTS, st.data())
def test_any_event_survives_json_and_one_with_other_fields_is_refused(
    event: Event, data: st.DataObject
) -> None:
    """An infinite gap, of a token without a runner-up, is nothing that JSON can say."""
    value = json.loads(json.dumps(to_json(event), allow_nan=False))
    assert from_json(value) == event
    needed = [f.name for f in fields(event) if f.default is f.default_factory is MISSING]
    missing = {**value}
    del missing[data.draw(st.sampled_from(["kind", *needed]))]
    for wrong in (missing, value | {"extra": 1}, value | {"kind": "Other"}, [value], None):
        with pytest.raises(ValueError, match="not an event"):
            from_json(wrong)


@pytest.mark.parametrize(
    "changed",
    [
        *({"parents": parents} for parents in ([-1, 1, 0], [-1, 0])),
        *({"path": path} for path in ([1, 2], [3], [-1])),
        *({"cut": cut} for cut in (1, -1, 9)),
        *({"by": by} for by in ([["one", 2]], [["one", 10**12]], [["one", -1], ["two", 4]])),
        {"allowed": [1, 2, 3]},
        {"top": [[["a", 1.0]]]},
    ],
)
def test_a_proposal_that_does_not_fit_together_is_refused(changed: dict[str, Any]) -> None:
    sound = Proposed(0, ["a", "b", "c"], [-1, 0, 0], [["one", 1], ["two", 2]], [0, 2], "d")
    assert sound.committed == ["a", "c", "d"]
    with pytest.raises(ValueError, match="does not fit together"):
        from_json({**to_json(sound), **changed})
