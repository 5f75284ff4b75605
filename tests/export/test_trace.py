"""The trace for Perfetto: each column's clock, part by part, without gaps or overlaps."""

import json
from typing import Any

import pytest
from recordings import EVERY, FAKE, MADE, race_events, race_of

from backend.events import Prefilled, Step
from backend.export.trace import LANES, trace
from backend.records.record import RaceRecord, board, recorded
from backend.strategies.column import default_column
from backend.types import Request


def events(record: RaceRecord, form: str) -> list[dict[str, Any]]:
    return [event for event in json.loads(trace(record))["traceEvents"] if event["ph"] == form]


def test_every_column_is_a_process_whose_parts_fill_its_own_clock() -> None:
    record = race_of(EVERY, 40)
    named, drawn = events(record, "M"), events(record, "X")
    processes = [e["args"]["name"] for e in named if e["name"] == "process_name"]
    assert processes == [board(record).name(i) for i in range(len(record.columns))]
    lanes = [e["args"]["name"] for e in named if e["name"] == "thread_name" and e["pid"] == 1]
    assert lanes == list(LANES.values())
    for column, score in enumerate(board(record).scores):
        own = sorted((e for e in drawn if e["pid"] == column), key=lambda e: e["ts"])
        assert sum(e["dur"] for e in own) == pytest.approx(score.seconds * 1e6, abs=0.2 * len(own))
        at = 0.0
        for event in own:
            assert event["ts"] == pytest.approx(at, abs=0.2 * len(own))
            at = event["ts"] + event["dur"]


def test_a_step_s_parts_say_what_it_did() -> None:
    record = race_of("lookup:k=3", 40)
    steps = [event for event in record.events if isinstance(event, Step)]
    passes = [e for e in events(record, "X") if e["name"] == "forward"]
    told = [(e["args"]["rows"], e["args"]["tokens"], e["args"]["accepted"]) for e in passes]
    assert told == [(s.rows, len(s.tokens), s.accepted) for s in steps]
    assert {e["tid"] for e in passes} == {list(LANES).index("forward")}


def test_a_long_prompt_s_chunks_are_drawn() -> None:
    request, columns = Request("word " * 60, 4), [default_column("kv")]
    record = recorded(request, columns, FAKE, race_events(request, columns), MADE)
    chunks = [event for event in record.events if isinstance(event, Prefilled)]
    drawn = [e["args"] for e in events(record, "X") if e["name"] == "prefill"]
    assert len(chunks) > 2
    assert drawn == [{"done": c.done, "total": c.total} for c in chunks]
