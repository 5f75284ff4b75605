"""Events are plain values: any of them survives JSON, anything else is refused."""

import json
from dataclasses import MISSING, fields, replace
from math import inf
from typing import Any, get_args

import pytest
from hypothesis import assume, given
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
    LoadKnown,
    Placed,
    Prefilled,
    Prepared,
    Preparing,
    Proposed,
    Reason,
    Resumed,
    Saved,
    Served,
    Shifted,
    Started,
    Step,
    from_json,
    to_json,
)

NUMBERS = st.integers(0, 10**9)
SECONDS = st.floats(0, 1e6)
SPANS = st.lists(st.tuples(st.text(), st.text()).map(list), max_size=4)


@st.composite
def proposals(draw: st.DrawFn) -> Proposed:
    """A tree, a path down it, and tokens that were cut."""
    parents = [draw(st.integers(-1, i - 1)) for i in range(draw(st.integers(0, 5)))]
    path: list[int] = []
    while children := [i for i, parent in enumerate(parents) if parent == [-1, *path][-1]]:
        if draw(st.booleans()):
            break
        path.append(draw(st.sampled_from(children)))
    cut, chosen = draw(st.integers(0, 2)), draw(st.sampled_from(["", "x"]))
    tokens = draw(st.lists(st.text(), min_size=len(parents) + cut, max_size=len(parents) + cut))
    by = [["one", 1], ["", len(tokens) - 1]] if len(tokens) > 1 else [["one", 1]] * len(tokens)
    committed = len(path) + bool(chosen)
    best = st.lists(st.tuples(st.text(), SECONDS).map(list), max_size=3)
    return Proposed(
        draw(NUMBERS),
        tokens,
        parents,
        by,
        path,
        chosen,
        cut,
        draw(st.lists(st.lists(st.text(), max_size=3), max_size=3)),
        draw(st.sampled_from([[], [7] * (1 + len(parents))])),
        draw(st.one_of(st.just([]), st.lists(best, min_size=committed, max_size=committed))),
    )


MADE = {
    Preparing: st.builds(Preparing, st.text()),
    Placed: st.builds(Placed, st.text(), st.text(), SECONDS, NUMBERS, st.text(), st.text()),
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
    LoadKnown: st.builds(
        LoadKnown,
        NUMBERS,
        st.lists(NUMBERS),
        st.lists(NUMBERS),
        st.lists(st.lists(SECONDS)),
        st.lists(st.lists(SECONDS)),
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
    Served: st.builds(
        Served,
        NUMBERS,
        st.sampled_from(("server", "network")),
        SECONDS,
        NUMBERS,
        NUMBERS,
        st.booleans(),
        NUMBERS,
        NUMBERS,
        NUMBERS,
        st.lists(NUMBERS, max_size=3),
        SECONDS,
        st.booleans(),
    ),
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
    Proposed: proposals(),
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
    said = {name: value for name, value in to_json(event).items() if name not in usual}
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
