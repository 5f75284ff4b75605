"""The commands on the fake engine.

Held here: events as JSON, a record and its replay are the race; what a user can fix is one sentence
on standard error and exit code 2; Ctrl-C ends with 130 and keeps what was written; nothing that a
model or a record holds steers the terminal.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from race_records import MADE, race_of
from typer.testing import CliRunner, Result

from backend.bench.summary import ALL, ColumnResult
from backend.bench.tune import Tuning
from backend.cli.main import app
from backend.costs import PassCosts
from backend.events import Event, Failed, Step, to_json
from backend.export.picture import picture_of
from backend.export.tables import markdown
from backend.records.file import load, save
from backend.records.record import RaceRecord
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import OwnModel, parse_column

ROOT = Path(__file__).resolve().parents[2]
FAKE = ("--engine", "fake", "--model", "fake-loop", "--max-new-tokens", "24")
SLOW = ("--engine", "fake", "--model", "fake-slow", "--max-new-tokens", "8000", "-c", "kv")
BENCH = ("bench", *FAKE, "--wait", "0", "--limit", "2")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def refused(*arguments: str) -> str:
    """The sentence with which a command refuses."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert not result.stdout
    sentence = result.stderr.rstrip("\n")
    assert "\n" not in sentence
    assert sentence.endswith((".", "?"))
    return sentence


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A recorded race's file, and what the race printed."""
    path = tmp_path_factory.mktemp("records") / "race.json"
    return path, run("race", "xx", *FAKE, "-c", "kv", "-c", "lookup:k=3", "--record", str(path))


def test_a_race_prints_every_text_and_a_table_and_so_does_its_replay(
    recorded: tuple[Path, Result],
) -> None:
    path, race = recorded
    assert race.exit_code == 0
    for label in ("KV reuse", "Prompt lookup"):
        assert race.stdout.count(label) >= 2, "above its text and in the table"
    replay = run("replay", str(path))
    rest = replay.stdout.removeprefix(race.stdout)
    assert " ".join(rest.split()) == f"Recorded: {load(path).place}."


def test_a_race_as_json_is_its_events_and_so_is_its_record(tmp_path: Path) -> None:
    columns, path = ("kv", "lookup", "lookahead"), tmp_path / "race.json"
    options = [word for column in columns for word in ("-c", column)]
    arguments = ("race", "-", *FAKE, *options, "--temperature", "0.8", "--json")
    result = CliRunner().invoke(app, [*arguments, "--record", str(path)], input="a" * 77)
    assert result.exit_code == 0
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    events, record = [line for line in lines if line["kind"] != "Preparing"], load(path)
    assert [to_json(event) for event in record.events] == events
    assert record.board.ended
    assert record.board.scores[0].prompt_tokens > 77


FORMS: dict[str, Callable[[RaceRecord], str]] = {"markdown": markdown, "svg": picture_of}


@pytest.mark.parametrize("form", FORMS)
def test_a_record_is_printed_in_other_forms(recorded: tuple[Path, Result], form: str) -> None:
    printed = run("replay", str(recorded[0]), "--as", form).stdout.replace("\r\n", "\n")
    assert printed == FORMS[form](load(recorded[0])).replace("\r\n", "\n")


def test_two_records_stand_side_by_side_with_what_differs(tmp_path: Path) -> None:
    """B took twice the time, wrote another text in a column, and has another third column."""
    record, (before, after) = race_of("kv grammar lookup"), (tmp_path / "a", tmp_path / "b")
    save(record, before)

    def later(event: Event) -> Event:
        if not isinstance(event, Step):
            return event
        text = [["sampled", "?"]] if event.column == 1 else event.spans
        tokens = [0 for _ in event.tokens] if event.column == 1 else event.tokens
        total = {"total": 2 * event.seconds["total"]}
        return replace(event, spans=text, tokens=tokens, seconds=total)

    columns = (*record.columns[:2], parse_column("stateless"))
    versions = (*record.versions, ("openvino", "[/x]"))
    events = tuple(map(later, record.events))
    save(replace(record, columns=columns, events=events, versions=versions), after)
    result = run("replay", str(before), str(after))
    lines = (line.split("\N{BOX DRAWINGS LIGHT VERTICAL}") for line in result.stdout.splitlines())
    rows = {cells[1].strip(): (cells[4].strip(), cells[7].strip()) for cells in lines if cells[1:]}
    half, none = "0.50\N{MULTIPLICATION SIGN}", "\N{EN DASH}"
    assert rows == {
        "KV reuse": (half, "same text"),
        "Grammar": (half, "differs at token 1"),
        "Prompt lookup": (none, none),
        "Stateless": (none, none),
    }
    assert result.stdout.count(MADE) == 2
    assert "; openvino [/x]" in result.stdout
    assert "leave --as out" in refused("replay", str(before), str(after), "--as", "svg")
    save(race_of("kv", 12), after)
    assert "(max_new_tokens)" in refused("replay", str(before), str(after))


def test_a_race_that_failed_is_a_sentence_recorded_and_shown(tmp_path: Path) -> None:
    path = tmp_path / "race.json"
    record = ("--context", "64", "--record", str(path))
    sentence = refused("race", "x" * 99, *FAKE, "-c", "kv", *record)
    assert isinstance(load(path).events[0], Failed)
    assert sentence in " ".join(run("replay", str(path)).stdout.split())


def test_a_failed_column_ends_with_its_sentence_after_the_others() -> None:
    result = run("race", "xx", *FAKE, "-c", "kv", "-c", "stateless@torch/bf16")
    assert result.exit_code == 2
    assert "KV reuse" in result.stdout
    assert "'fake-loop'" in result.stderr


def test_what_a_model_cannot_run_of_its_usual_line_up_is_told_and_no_failure() -> None:
    one_token = (*FAKE[:3], "fake-one-token", *FAKE[4:])
    race = run("race", "xx", *one_token)
    bench = run("bench", *one_token, "--limit", "1", "--wait", "0")
    for result in (race, bench):
        assert result.exit_code == 0
        assert "one token at a time" in f"{result.stdout} {result.stderr}"
        assert "KV reuse" in result.stdout
    assert run("race", "xx", *one_token, "-c", "kv", "-c", "lookup").exit_code == 2


def test_a_program_s_values_stand_below_its_text() -> None:
    result = run("race", 'A {{select "colour" "red|blue"}}.', *FAKE, "-c", "kv")
    assert json.loads(result.stdout.splitlines()[3])["colour"] in ("red", "blue")


@pytest.mark.parametrize("form", [(), ("--as", "markdown")])
def test_nothing_in_a_record_steers_the_terminal(tmp_path: Path, form: tuple[str, ...]) -> None:
    record, path = race_of("kv lookup"), tmp_path / "race.json"
    evil = "\x1b]52;c;ZXZpbA==\x07\x9b2J"
    events = tuple(
        replace(event, spans=[["sampled", evil]]) if hasattr(event, "origins") else event
        for event in record.events
    )
    machine = replace(record.machine, processor=evil)
    save(replace(record, machine=machine, events=(*events, Failed(1, evil))), path)
    result = run("replay", str(path), *form)
    assert result.exit_code == 0
    assert "]52;c" in result.stdout
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", result.stdout)


@pytest.mark.parametrize("name", ["[fp16]m", "[link=a.b]m", "m[red]", ":fire:"])
def test_brackets_in_names_are_no_markup(name: str, tmp_path: Path) -> None:
    file, columns = tmp_path / "race.json", ("-c", "kv", "-c", f"kv:model=./{name}")
    race = run("race", "xx", *FAKE, *columns, "--record", str(file))
    record, model = load(file), OwnModel(f"./models/{name}", "fake", f"[/x]{name}")
    save(replace(record, columns=(record.columns[0], record.columns[1].on(model))), file)
    replay, bench = run("replay", str(file)), run(*BENCH, *columns)
    lines = (
        (race, f" KV reuse ({name}) "),
        (bench, f"\N{BOX DRAWINGS LIGHT VERTICAL} KV reuse ({name}) "),
    )
    for result, cell in (*lines, (replay, f" KV reuse ({name}, fake, [/x]{name}) ")):
        assert any(line.startswith(cell) for line in result.stdout.splitlines())


def test_a_benchmark_goes_on_from_its_results(tmp_path: Path) -> None:
    command = (*BENCH, "-c", "lookup")
    file = ("--results", str(tmp_path / "rows.jsonl"))
    result = run(*command, *file)
    assert result.exit_code == 0
    assert "bench: fake-loop on fake" in result.stdout
    assert "| list (1)" in result.stdout
    assert "run 2 of 2" in result.stderr
    again = run(*command, *file, "--json")
    assert "run 2" not in again.stderr, "nothing is measured again"
    first, second, *_ = json.loads(again.stdout)
    assert [first["column"], second["column"]] == ["KV reuse", "Prompt lookup"]
    assert second["equal"] == second["prompts"] == 2
    assert "belong to another benchmark" in refused(*command, *file, "--seed", "1")


def test_bench_names_the_column_that_failed_after_its_table() -> None:
    result = run(*BENCH, "-c", "stateless@torch/bf16")
    assert result.exit_code == 2
    assert "KV reuse" in result.stdout
    assert result.stderr.splitlines()[-1].startswith("Stateless (torch, bf16), 2 prompts: ")


@pytest.mark.parametrize(
    ("others", "faster", "limit", "sentence", "use"),
    [
        (0.1, True, "4", "1.43\N{MULTIPLICATION SIGN} (1.21", "Use: -c lookup:k=4"),
        (0.4, True, "4", "Speeds may be off", "Use: -c lookup:k=4"),
        (0.6, True, "4", "Too noisy to tell", ""),
        (0.1, False, "4", "No setting is shown to be faster than KV reuse", "Use: -c kv"),
        (0.1, False, "2", "raise --limit", "Use: -c kv"),
    ],
)
def test_tune_names_what_is_shown_to_be_faster(
    others: float,
    faster: bool,
    limit: str,
    sentence: str,
    use: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = ColumnResult("lookup:k=4", ALL, 4, 0, None, None, 1.43, (1.21, 1.67), 2.0, 0.5, 4, faster)
    best, costs = row if faster else None, PassCosts((1, 32), (0.01, 0.02))
    tuning = Tuning("kv", costs, [row], best, others)
    monkeypatch.setattr("backend.cli.bench.tuned", lambda *_, **__: tuning)
    result = run("tune", *FAKE, "--wait", "0", "--raw", "--limit", limit)
    assert sentence in " ".join(result.stderr.split())
    assert ("Use: " in result.stdout) == bool(use)
    assert result.stdout.splitlines()[-1].startswith(use)


def test_every_command_is_in_the_list_and_has_help() -> None:
    page = " ".join(run("--help").stdout.split())
    for command in typer.main.get_group(app).commands.values():
        assert f"{command.name} {str(command.help)[:20]}" in page
        assert run(str(command.name), "--help").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("race", "xx", *FAKE, "-c", "kv", "-c", "warp"), "'warp'"),
        (("race", "xx", *FAKE, "-c", "grammar:grammar=own"), "own"),
        (("race", " ", *FAKE, "-c", "kv"), "prompt"),
        (("race", "xx", *FAKE, "--grammar", "no.such.file"), "no.such.file"),
        (("race", "xx", *FAKE, "--record", "no/such/race.json"), "race.json"),
        (("race", "bad \udcff prompt", *FAKE, "-c", "kv"), "Character 5"),
        (("bench", "--engine", "warp", "-c", "kv"), "'warp'"),
        (("bench", *FAKE, "--prompts", "no.such.file"), "no.such.file"),
        (("bench", *FAKE, "--warp"), "--warp"),
        (("tune", *FAKE, "--limit", "-1"), "-1"),
        (("verify", "--engine", "fake"), "built-in"),
        (("rase",), "'rase'"),
        (("replay", "no/such/file"), "No such file"),
        (("replay", os.curdir), "another file"),
        (("setup",), "cannot be written"),
    ],
)
def test_what_a_user_can_fix_is_one_sentence(
    arguments: tuple[str, ...], part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "file"
    cache.write_text("")
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(cache))
    assert part in refused(*arguments)


def test_a_race_stopped_by_ctrl_c_prints_and_records_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupting(Scoreboard):
        def add(self, event: Event) -> None:
            super().add(event)
            if isinstance(event, Step) and self.scores[0].steps == 5:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("backend.cli.race.Scoreboard", Interrupting)
    path = tmp_path / "race.json"
    result = run("race", "xx", *SLOW, "--record", str(path))
    assert result.exit_code == 130
    score = load(path).board.scores[0]
    assert (score.state, score.reason) == ("stopped", "stopped")
    assert 0 < score.length < 8000
    assert "".join(score.text.split()) in "".join(result.stdout.split())


@pytest.fixture
def endless() -> Iterator[subprocess.Popen[bytes]]:
    """A race in a process of its own that goes on, and has told its first event."""
    command = [sys.executable, "-m", "backend", "race", "xx", *SLOW, "--json"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as program:
        assert program.stdout
        assert program.stdout.readline()
        yield program


def test_ctrl_c_ends_it_with_130_and_no_traceback(endless: subprocess.Popen[bytes]) -> None:
    endless.send_signal(signal.SIGINT)
    _, err = endless.communicate()
    assert endless.returncode == 130
    assert b"Traceback" not in err


def test_a_reader_that_leaves_ends_it_without_a_traceback(
    endless: subprocess.Popen[bytes],
) -> None:
    assert endless.stdout
    assert endless.stderr
    endless.stdout.close()
    assert endless.stderr.read() == b""
    assert endless.wait() == 1


def test_a_fault_of_ours_is_a_sentence_with_a_reference(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: object, *_: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr("backend.cli.race.parse_column", fail)
    result = run("race", "xx", *FAKE)
    assert result.exit_code == 1
    assert "reference" in result.stderr
    assert "KeyError: 'ours'" in caplog.text


@pytest.mark.parametrize(("other", "code"), [("lookup", 0), ("kv:grammar=json", 1)])
def test_verify_prints_a_line_a_case_and_ends_with_1_where_a_text_differs(
    other: str, code: int
) -> None:
    command = ("verify", "--engine", "fake", "--model", "fake-loop", "--prompts", "1")
    result = run(*command, "--max-new-tokens", "4", "-c", other)
    assert result.exit_code == code
    lines = result.stdout.splitlines()[:: code + 1]
    assert [line[:4] for line in lines[:5]] == [f"{number}/5 " for number in range(1, 6)]
    assert all(("2 columns equal" in line) == (code == 0) for line in lines[:5])
    assert f"{0 if code else 5} of 5 cases: all columns equal" in result.stdout
