"""A record is all of a race: whatever is drawn of the race is drawn from it."""

import json
from dataclasses import replace

import pytest
from recordings import EVERY, FAKE, race_events

from backend.errors import DerbyError
from backend.events import (
    Conditions,
    Decided,
    Failed,
    Filled,
    Finished,
    Preparing,
    Started,
)
from backend.records.file import document_of
from backend.records.place import Hardware, this_machine, versions
from backend.records.record import board, recorded
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import OwnModel, default_column, parse_column
from backend.types import ModelSpec, Request

FOLDER = "/srv/models/secret"


def named(text: str) -> str:
    return text.replace(FOLDER, "model-7")


def test_the_board_of_a_record_is_the_board_that_was_seen() -> None:
    columns = [parse_column(name) for name in EVERY.split()]
    request = Request("Why is it so?", 20)
    events = race_events(request, columns)
    seen = Scoreboard(columns)
    for event in events:
        seen.add(event)
    drawn = board(recorded(request, columns, FAKE, events))
    assert drawn.scores == seen.scores
    assert drawn.conditions == seen.conditions
    assert drawn.columns == seen.columns
    assert drawn.ended


def test_events_stand_column_by_column_each_in_its_order() -> None:
    columns = [default_column("kv")] * 2
    told = [Started(1, 3, "m"), Started(0, 3, "m"), Conditions(1, 0, 0, 0), Failed(0, "a")]
    record = recorded(Request("a"), columns, FAKE, [*told, Failed(1, "b")])
    assert record.events == (told[1], told[3], told[0], Failed(1, "b"), told[2])


def test_what_is_of_no_race_is_left_out_and_what_is_of_no_column_refused() -> None:
    told = [Preparing("Loading..."), Failed(0, "a")]
    record = recorded(Request("a"), [default_column("kv")], FAKE, told)
    assert record.events == (Failed(0, "a"),)
    with pytest.raises(DerbyError, match="column 3 of a race of 2"):
        recorded(Request("a"), [default_column("kv")] * 2, FAKE, [Failed(2, "a")])


def test_it_says_where_and_with_what_it_was_made() -> None:
    record = recorded(Request("a"), [default_column("kv")], FAKE, [])
    assert record.machine == this_machine()
    assert record.machine.memory > 1 << 28
    assert record.machine.cores > 0
    assert dict(record.versions)["decode-derby"]
    assert {"python", "openvino", "numpy"} <= dict(record.versions).keys()
    assert record.versions == versions()
    assert record.made.endswith("Z")
    assert record.made in record.place
    assert "unknown" in replace(record, machine=Hardware(), versions=()).place


def test_a_public_record_names_none_of_the_operator_s_folders() -> None:
    columns = [
        parse_column("kv").on(OwnModel(FOLDER)),
        parse_column(f"speculative:draft={FOLDER}/head.safetensors"),
    ]
    events = [
        Started(0, 3, f"{FOLDER} on openvino", "t", {"name": FOLDER, "engine": "openvino"}),
        Decided(1, {"draft": FOLDER}, 1.0, f"drafts by {FOLDER}", [f"{FOLDER} is not there"]),
        Finished(0, "end of text", [["sampled", "a"]]),
        Failed(1, f"There is no {FOLDER}."),
        Conditions(2, 0, 0, 0),
    ]
    record = recorded(Request("a"), columns, replace(FAKE, name=FOLDER), events)
    assert FOLDER in json.dumps(document_of(record))
    public = record.published(named)
    assert FOLDER not in json.dumps(document_of(public))
    assert public.target.name == "model-7"
    assert public.columns[0].label == "KV reuse (model-7)"
    assert public.events[1] == Finished(0, "end of text", [["sampled", "a"]])


def test_what_was_asked_and_written_stays_as_it_is() -> None:
    """A visitor's prompt may hold what the operator's folder is called."""
    spans = [["fixed", FOLDER]]
    events = (Filled(0, "slot", FOLDER, spans), Finished(0, "end of program", spans))
    record = recorded(Request(FOLDER), [default_column("kv")], ModelSpec(), events)
    assert record.published(named) == record
