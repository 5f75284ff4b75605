"""race --record and replay: what was seen is seen again."""

import json
import os
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from recordings import race_of
from typer.testing import CliRunner, Result

from backend.cli.main import app
from backend.events import Event, Failed, Step, to_json
from backend.export.picture import picture_of
from backend.export.tables import csv_table, markdown
from backend.records.file import as_bytes, load, save
from backend.records.record import RaceRecord, board
from backend.results.scoreboard import Scoreboard

FAKE = ("--engine", "fake", "--model", "fake-loop", "--max-new-tokens", "24")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A recorded race's file, and what the race printed."""
    path = tmp_path_factory.mktemp("records") / "race.json"
    return path, run("race", "xx", *FAKE, "-c", "kv", "-c", "lookup:k=3", "--record", str(path))


def test_a_replay_prints_what_the_race_printed(raced: tuple[Path, Result]) -> None:
    path, race = raced
    assert race.exit_code == 0
    replay = run("replay", str(path))
    assert replay.exit_code == 0
    assert replay.stdout.startswith(race.stdout)
    rest = replay.stdout.removeprefix(race.stdout)
    assert " ".join(rest.split()) == f"Recorded: {load(path).place}."


def test_events_as_json_are_the_same_when_replayed(tmp_path: Path) -> None:
    path = tmp_path / "race.json"
    result = run("race", "xx", *FAKE, "-c", "kv", "--json", "--record", str(path))
    printed = [json.loads(line) for line in result.stdout.splitlines()]
    replayed = [json.loads(line) for line in run("replay", str(path), "--json").stdout.splitlines()]
    assert replayed == [event for event in printed if event["kind"] != "Preparing"]
    assert replayed == [to_json(event) for event in load(path).events]


def test_a_race_that_failed_is_recorded_and_shown(tmp_path: Path) -> None:
    path = tmp_path / "race.json"
    result = run("race", "x" * 99, *FAKE, "-c", "kv", "--context", "64", "--record", str(path))
    assert result.exit_code == 2
    assert isinstance(load(path).events[0], Failed)
    assert "the context holds 64" in " ".join(run("replay", str(path)).stdout.split())


def test_a_race_stopped_by_ctrl_c_prints_and_records_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C lost everything that had been written, and --record wrote no file."""

    class Interrupting(Scoreboard):
        def add(self, event: Event) -> None:
            super().add(event)
            if isinstance(event, Step) and self.scores[0].steps == 5:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("backend.cli.race.Scoreboard", Interrupting)
    path = tmp_path / "race.json"
    asked = ("--engine", "fake", "--model", "fake-slow", "--max-new-tokens", "8000", "-c", "kv")
    result = run("race", "xx", *asked, "--record", str(path))
    assert result.exit_code == 130
    record = load(path)
    score = board(record).scores[0]
    assert (score.state, score.reason) == ("stopped", "stopped")
    assert 0 < score.length < 8000
    written = "".join(text for _, text in score.spans)
    assert "".join(written.split()) in "".join(result.stdout.split())


def test_what_could_not_be_written_is_refused_before_the_race(tmp_path: Path) -> None:
    result = run("race", "xx", *FAKE, "--record", str(tmp_path / "no" / "race.json"))
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr
    assert not result.stdout


FORMS: dict[str, Callable[[RaceRecord], str]] = {
    "csv": csv_table,
    "markdown": markdown,
    "svg": picture_of,
    "json": lambda record: as_bytes(record).decode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_it_is_printed_in_other_forms(raced: tuple[Path, Result], form: str) -> None:
    path, _ = raced
    printed = run("replay", str(path), "--as", form).stdout.replace("\r\n", "\n")
    assert printed == FORMS[form](load(path)).replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("no/such/file",), "No such file"),
        (("a" * 70_000,), "File name too long"),
        ((os.curdir,), "name another file"),
        (("RACE", "--as", "gif"), "choose from json, csv, markdown, svg"),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    raced: tuple[Path, Result], given: tuple[str, ...], said: str
) -> None:
    result = run("replay", *(str(raced[0]) if word == "RACE" else word for word in given))
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert not result.stdout


@pytest.mark.parametrize("form", [(), ("--as", "csv"), ("--as", "markdown")])
def test_nothing_in_a_record_steers_the_terminal(tmp_path: Path, form: tuple[str, ...]) -> None:
    """A text with an escape sequence could write to the clipboard of whoever replays it."""
    record, path = race_of("kv lookup"), tmp_path / "race.json"
    evil = "\x1b]52;c;ZXZpbA==\x07\x9b2J"
    steps = tuple(
        replace(event, spans=[["sampled", evil]]) if hasattr(event, "origins") else event
        for event in record.events
    )
    machine = replace(record.machine, processor=evil)
    save(replace(record, machine=machine, events=(*steps, Failed(1, evil))), path)
    result = run("replay", str(path), *form)
    assert result.exit_code == 0
    assert "]52;c" in result.stdout
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", result.stdout)
