"""A record is all of a race: whatever is drawn of the race is drawn from it."""

from dataclasses import replace

import pytest
from recordings import EVERY, FAKE, race_events

from backend.errors import DerbyError
from backend.events import (
    Conditions,
    Failed,
    Preparing,
    Started,
)
from backend.records.record import Hardware, board, recorded, this_machine, versions
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import default_column, parse_column
from backend.types import Request

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
    told = [Started(1, 3, "m"), Started(0, 3, "m"), Conditions(1, 0), Failed(0, "a")]
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
