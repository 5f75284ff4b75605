"""A record's file: the same record comes back from it, or a sentence."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from lib import LOCAL
from recordings import EVERY, FAKE, KINDS, PARTS, RECORDS, race_of

from backend.errors import DerbyError
from backend.events import CostsKnown, Event, to_json
from backend.grammar.sources import GrammarSource, shipped
from backend.records.file import (
    MAX_BYTES,
    MAX_VALUES,
    as_bytes,
    document_of,
    from_bytes,
    load,
    require_folder,
    save,
)
from backend.records.record import LEFT_OUT, RaceRecord, board, recorded
from backend.strategies.column import OwnModel, default_column
from backend.types import Request

OWN = GrammarSource("lark", "%import date\nstart: date", "mine")


def refusal(data: Any, most: int = MAX_BYTES) -> str:
    said = data if isinstance(data, bytes) else json.dumps(data).encode()
    with pytest.raises(DerbyError) as caught:
        from_bytes(said, most)
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert len(sentence) < 500
    return sentence


@given(RECORDS)
def test_any_record_survives_its_file(record: RaceRecord) -> None:
    assert from_bytes(as_bytes(record)) == record


def test_a_race_of_every_strategy_survives_and_looks_the_same() -> None:
    record = race_of(EVERY, 60, 0.8)
    read = from_bytes(as_bytes(record))
    assert read == record
    assert board(read).scores == board(record).scores


def test_the_file_is_plain_json() -> None:
    """Whoever lays it out anew, or changes it by hand, still has a race."""
    record = race_of("kv lookup")
    assert json.loads(as_bytes(record)) == document_of(record)
    pretty = json.dumps(json.loads(as_bytes(record)), indent=1)
    assert from_bytes(pretty.encode()) == record


def test_the_schema_is_printed_when_asked_for() -> None:
    asked = [sys.executable, "-m", "backend.records.file"]
    printed = subprocess.run(asked, capture_output=True, check=True, cwd=Path(__file__).parents[2])
    assert json.loads(printed.stdout)["$defs"].keys() == PARTS.keys()
    assert KINDS.keys() == {kind.__name__ for kind in get_args(Event) if kind not in LEFT_OUT}


def test_everything_is_bounded() -> None:
    """A number beyond all bounds would break whoever draws it."""

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
    said = as_bytes(recorded(Request("a"), [column], FAKE, ()))
    assert from_bytes(said).columns == (column,)
    assert (b"start:" in said) == (grammar == OWN), "a grammar that ships is a name"


Change = Callable[[dict[str, Any]], Any]

CHANGES: dict[str, Change] = {
    "an unknown key": lambda d: d.update(more=1),
    "an unknown kind": lambda d: d["events"][0].update(kind="Ended"),
    "a kind that is of no race": lambda d: d["events"].append({"kind": "Preparing", "text": "a"}),
    "true for a whole number": lambda d: step(d).update(rows=True),
    "a token below 0": lambda d: step(d).update(tokens=[-1]),
    "a number beyond": lambda d: step(d).update(rows=10**30),
    "no number": lambda d: step(d)["seconds"].update(total=float("nan")),
    "a step without its time": lambda d: step(d)["seconds"].pop("total"),
    "more tokens than origins": lambda d: step(d).update(tokens=[1, 2, 3, 4, 5]),
    "an unknown origin": lambda d: step(d).update(origins=["guessed"]),
    "a column beyond": lambda d: d["events"][0].update(column=1),
    "too many columns": lambda d: d.update(columns=d["columns"] * 13),
    "an unknown setting": lambda d: d["columns"][0]["settings"].update(k="2"),
    "an empty prompt": lambda d: d["request"].update(prompt=" "),
    "a temperature beyond": lambda d: d["request"]["sampling"].update(temperature=9),
    "no moment": lambda d: d.update(made="2026-13-40T10:20:30Z"),
    "another format": lambda d: d.update(format="snapshot"),
    "no version": lambda d: d.pop("version"),
    "a strategy that is not here": lambda d: d["columns"][0].update(strategy="bigram"),
    "an engine that is not here": lambda d: d["target"].update(engine="vulkan"),
}


def step(document: dict[str, Any]) -> dict[str, Any]:
    return next(event for event in document["events"] if event["kind"] == "Step")


@pytest.mark.parametrize("what", CHANGES)
def test_anything_else_is_refused(what: str) -> None:
    said = json.loads(as_bytes(race_of("kv")))
    CHANGES[what](said)
    refusal(said)


def test_what_is_no_document_is_refused() -> None:
    for value in (None, [], 7, "decode-derby-race", {"format": []}, {"a": 1}):
        assert "not a record of a race" in refusal(value)
    for version in (1, 2):
        other = document_of(race_of("kv")) | {"version": version}
        assert f"version {version}, and this program reads 3" in refusal(other)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"a":NaN}', "'format' is missing"),
        (b'{"a":' + b"[" * 10**5 + b"]" * 10**5 + b"}", "recursion limit"),
        (b'{"a":"\\ud800"}', "not JSON"),
        (b'{"a":1', "not JSON"),
        (b"", "not JSON"),
        (b'{"a":[' + b"{}," * 5 * 10**6 + b"{}]}", "are the most"),
    ],
)
def test_what_is_no_json_of_ours_is_refused(data: bytes, said: str) -> None:
    """60 MB of `{}` took 6.8 s to parse, and more memory than a small machine has."""
    assert said in refusal(data)


def test_costs_of_other_widths_than_are_said_are_refused() -> None:
    said = document_of(race_of("kv"))
    for widths in ([1, 1], [4, 2], [1]):
        said["events"] = [to_json(CostsKnown(0, [1, 2], [0.1, 0.2], 0.0, 0.0))]
        assert from_bytes(json.dumps(said).encode()).events
        said["events"][0]["widths"] = widths
        assert "cost what no" in refusal(said)


def test_more_bytes_than_asked_for_are_not_read() -> None:
    data = as_bytes(race_of("kv"))
    assert from_bytes(data, len(data)) == race_of("kv")
    assert f"longer than {len(data) - 1:,} bytes" in refusal(data, len(data) - 1)


def test_the_longest_race_fits() -> None:
    """Twelve columns of 8,192 tokens, each in a step of its own, with what was proposed in it and
    the five most probable tokens.
    """
    short, long = (as_bytes(race_of("lookup:k=4", tokens)) for tokens in (24, 48))
    assert (len(long) - len(short)) / 24 * 12 * 8192 < MAX_BYTES
    values = [sum(map(data.count, (b",", b"[", b"{"))) for data in (short, long)]
    assert (values[1] - values[0]) / 24 * 12 * 8192 < MAX_VALUES


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
