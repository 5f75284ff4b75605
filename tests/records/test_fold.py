"""Folded events come back as they were, and nothing folded grows beyond its bound."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import EVENTS, EVERY, race_of

from backend.errors import DerbyError
from backend.events import to_json
from backend.records.fold import fold, unfold

#: JSON values of which many are alike, as events are.
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(0, 3), st.text(max_size=2)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(("", "a", "bc")), inner, max_size=3),
    ),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.sampled_from(("a", "bc")), VALUES, max_size=2)
EVENT_LIKE = OBJECTS.map(lambda value: {"kind": "Other", **value})


def text(values: Any) -> str:
    return json.dumps(values, allow_nan=False)


def through(events: list[Any]) -> list[Any]:
    """Folded and unfolded, within no more room than they take as JSON."""
    return unfold(json.loads(text(fold(events))), len(text(events)))


@given(st.lists(EVENT_LIKE, max_size=8))
def test_whatever_objects_there_are_come_back(events: list[Any]) -> None:
    """To the letter: what is true does not become 1."""
    assert text(through(events)) == text(events)


@given(st.lists(EVENTS, max_size=12))
def test_any_events_come_back(events: list[Any]) -> None:
    said = [to_json(event) for event in events]
    assert through(said) == said


def test_a_step_s_total_is_said_only_where_its_parts_do_not_add_up_to_it() -> None:
    step = {"kind": "Step", "seconds": {"draft": 0.1, "forward": 0.2, "total": 0.3}}
    off = {"kind": "Step", "seconds": {"draft": 0.1, "forward": 0.2, "total": 0.3000001}}
    assert "total" not in text(fold([step]))
    assert "total" in text(fold([off]))
    assert through([step, off]) == [step, off]


def test_a_race_takes_less_room_than_its_events() -> None:
    said = [to_json(event) for event in race_of(EVERY, 60).events]
    assert through(said) == said
    assert 2 * len(text(fold(said))) < len(text(said))


def long_names(levels: int) -> Any:
    """A few kilobytes that unfold to objects whose names come to ten thousand times as much."""
    inner: Any = [0] * 1000
    for _ in range(levels):
        inner = {"which": [0] * 1000, "shapes": [{"n" * 1000: inner}]}
    return inner


@pytest.mark.parametrize("levels", [1, 2])
def test_names_that_would_be_repeated_beyond_all_bounds_are_refused(levels: int) -> None:
    unfold(long_names(levels), levels * 1000 * 1005)
    with pytest.raises(DerbyError, match="too long"):
        unfold(long_names(levels), levels * 1000 * 1005 - 1)


@given(VALUES)
def test_what_nothing_was_folded_to_is_a_sentence_or_a_list(folded: Any) -> None:
    """What the list holds, the reader of records judges."""
    with suppress(DerbyError):
        assert isinstance(unfold(folded, 1000), list)


@pytest.mark.parametrize(
    "folded",
    [
        {"which": [1], "shapes": [{}]},
        {"which": ["a"], "shapes": [{}]},
        {"which": [0], "shapes": [["a"]]},
        {"which": [0], "shapes": ["a"]},
        {"places": [[1], [1, 2]]},
        {"lengths": [-1], "items": []},
        {"lengths": ["a"], "items": []},
        {"lengths": [1], "items": 0},
        {"which": [0, 0], "shapes": [{"kind": ["Step"] * 2, "seconds": [{"a": "b"}, {}]}]},
        {"which": [0], "shapes": [{"kind": ["Step"], "seconds": [{"a": 10**400}]}]},
    ],
)
def test_what_does_not_fit_together_is_refused(folded: Any) -> None:
    with pytest.raises(DerbyError, match="do not fit together"):
        unfold(folded, 1000)
