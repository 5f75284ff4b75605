"""A record is all of a race; from its file the same record comes back, or one sentence, whatever
the file holds, and a file is written whole or not at all.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from loop_runs import LOCAL
from race_records import FAKE, KINDS, PARTS, RECORDS, race_events, race_of

from backend.errors import DerbyError
from backend.events import CostsKnown, Event, Failed, Preparing, to_json
from backend.grammar.sources import GrammarSource, shipped
from backend.records.file import MAX_BYTES, as_bytes, from_bytes, load, require_folder, save
from backend.records.record import Hardware, RaceRecord, recorded, this_machine, versions
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import OwnModel, default_column
from backend.types import Request

ROOT = Path(__file__).resolve().parents[2]

OWN = GrammarSource("lark", "%import date\nstart: date", "mine")


def refusal(data: bytes) -> None:
    with pytest.raises(DerbyError) as error:
        from_bytes(data)
    assert re.fullmatch(r"[^\n]{1,499}\.", str(error.value))


@given(RECORDS)
def test_any_record_survives_its_file(record: RaceRecord) -> None:
    assert from_bytes(as_bytes(record)) == record


def test_a_race_of_every_strategy_survives_and_looks_as_it_was_seen() -> None:
    columns, request = [default_column(name) for name in LOCAL], Request("Why is it so?", 20)
    events = race_events(request, columns)
    record, scoreboard = recorded(request, columns, FAKE, events), Scoreboard(columns, events)
    document = json.loads(as_bytes(record))
    for part in (document, *document["events"]):
        part["draft"] = 0.5  # as earlier programs wrote
    read = from_bytes(json.dumps(document, indent=1).encode())
    assert read == record
    assert read.board.scores == scoreboard.scores
    assert read.board.conditions == scoreboard.conditions
    assert read.board.ended


def test_everything_is_bounded() -> None:
    """Of every kind of event. A number beyond all bounds would break whoever draws it."""
    assert KINDS.keys() == {kind.__name__ for kind in get_args(Event)}

    def unbounded(part: Any) -> Iterator[Any]:
        if isinstance(part, dict):
            number = part.get("type") in ("integer", "number")
            if number and not {"minimum", "maximum"} <= part.keys():
                yield part
            part = list(part.values())
        for each in part if isinstance(part, list) else ():
            yield from unbounded(each)

    assert [each for name in KINDS for each in unbounded(PARTS[name])] == []


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("grammar", [None, OWN, shipped()["sql"]])
def test_every_column_survives(name: str, grammar: GrammarSource | None) -> None:
    column = default_column(name).with_settings({"grammar": grammar}).on(OwnModel("m", "torch"))
    data = as_bytes(recorded(Request("a"), [column], FAKE, ()))
    assert from_bytes(data).columns == (column,)
    assert (b"start:" in data) == (grammar == OWN), "a grammar that ships is a name"


Change = Callable[[dict[str, Any]], Any]

COSTS = to_json(CostsKnown(0, [1, 2], [0.1, 0.2]))

CHANGES: dict[str, Change] = {
    "a step without its time": lambda d: step(d)["seconds"].pop("total"),
    "more tokens than origins": lambda d: step(d).update(tokens=[1, 2, 3, 4, 5]),
    "a column beyond": lambda d: d["events"][0].update(column=1),
    "too many columns": lambda d: d.update(columns=d["columns"] * 13),
    "an unknown setting": lambda d: d["columns"][0]["settings"].update(k="2"),
    "a temperature beyond": lambda d: d["request"]["sampling"].update(temperature=9),
    "no moment": lambda d: d.update(made="2026-11-29 10:20:30"),
    "another format": lambda d: d.update(format="snapshot"),
    "another version": lambda d: d.update(version=2),
    "costs of other widths": lambda d: d.update(events=[COSTS | {"widths": [4, 2]}]),
    "a strategy that is not here": lambda d: d["columns"][0].update(strategy="bigram"),
    "an engine that is not here": lambda d: d["target"].update(engine="vulkan"),
}


def step(document: dict[str, Any]) -> dict[str, Any]:
    return next(event for event in document["events"] if event["kind"] == "Step")


@pytest.mark.parametrize("what", CHANGES)
def test_anything_else_is_refused(what: str) -> None:
    document = json.loads(as_bytes(race_of("kv")))
    CHANGES[what](document)
    refusal(json.dumps(document).encode())


@pytest.mark.parametrize(
    "data",
    [
        *map(json.dumps, (None, [], {"a": 1})),
        '{"a":NaN}',
        '{"a":' + "[" * 10**5 + "]" * 10**5 + "}",
        '{"a":"\\ud800"}',
        '{"a":1',
        "",
        '{"a":[' + "{}," * 5 * 10**6 + "{}]}",  # more values than are read
    ],
    ids=range(9),
)
def test_what_is_no_document_is_refused_at_once(data: str) -> None:
    refusal(data.encode())


def test_more_bytes_than_any_race_has_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = as_bytes(race_of("kv"))
    monkeypatch.setattr("backend.records.file.MAX_BYTES", len(data) - 1)
    refusal(data)


def test_the_longest_race_fits() -> None:
    """Twelve columns of 8,192 tokens, each in a step of its own, with what was proposed in it and
    the five most probable tokens.
    """
    short, long = (as_bytes(race_of("lookup:k=4", tokens)) for tokens in (24, 48))
    assert (len(long) - len(short)) / 24 * 12 * 8192 < MAX_BYTES


def test_a_file_is_there_whole_or_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "race.json"
    save(race_of("kv"), path)
    assert load(path) == race_of("kv")
    assert list(tmp_path.iterdir()) == [path]

    def full(path: Path, data: bytes) -> None:
        with path.open("wb") as file:
            file.write(data[:9])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(DerbyError, match="No space left on device"):
        save(race_of("lookup"), path)
    assert load(path) == race_of("kv")
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_where_nothing_can_be_written_is_refused_beforehand(tmp_path: Path) -> None:
    require_folder(tmp_path / "race.json")
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "no" / "race.json", tmp_path / "file" / "race.json"):
        for refused in (require_folder, lambda p: save(race_of("kv"), p), load):
            with pytest.raises(DerbyError, match="name another file"):
                refused(path)


def test_what_is_of_no_race_is_left_out_and_what_is_of_no_column_refused() -> None:
    events, columns = [Preparing("Loading..."), Failed(0, "a")], [default_column("kv")]
    assert recorded(Request("a"), columns, FAKE, events).events == (Failed(0, "a"),)
    with pytest.raises(DerbyError, match="column 3 of a race of 2"):
        recorded(Request("a"), columns * 2, FAKE, [Failed(2, "a")])


def test_it_says_where_and_with_what_it_was_made() -> None:
    record = recorded(Request("a"), [default_column("kv")], FAKE, [])
    assert (record.machine, record.versions) == (this_machine(), versions())
    assert record.machine.memory > 1 << 28
    assert {"decode-derby", "python", "openvino", "numpy"} <= dict(record.versions).keys()
    assert record.made in record.place
    assert "unknown" in replace(record, machine=Hardware(), versions=()).place
