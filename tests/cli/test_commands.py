"""The commands on the fake engine: what they print, and one sentence for what a user can fix."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from backend.bench.registry import EXPERIMENTS
from backend.cli.main import COMMANDS, app
from backend.events import from_json
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import parse_column
from backend.strategies.registry import strategies

FAKE = ("--engine", "fake", "--model", "fake-loop", "--max-new-tokens", "24")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def refused(*arguments: str) -> str:
    """The sentence with which a command refuses."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert not result.stdout
    sentence = result.stderr.rstrip("\n")
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence


def test_a_race_prints_every_text_and_a_table() -> None:
    result = run("race", "xx", *FAKE, "-c", "kv", "-c", "lookup:k=3")
    assert result.exit_code == 0
    for label in ("KV reuse", "Prompt lookup (k=3)"):
        assert result.stdout.count(label) >= 2, "above its text and in the table"
    assert "identical to KV reuse (24 tokens)" in result.stdout


def test_a_race_as_json_is_its_events_and_nothing_else() -> None:
    columns = ("kv", "lookup", "lookahead")
    named = [word for column in columns for word in ("-c", column)]
    result = run("race", "xx", *FAKE, *named, "--temperature", "0.8", "--json")
    assert result.exit_code == 0
    board = Scoreboard([parse_column(column) for column in columns])
    for line in result.stdout.splitlines():
        board.add(from_json(json.loads(line)))
    assert board.ended
    base, *others = [score.tokens for score in board.scores]
    assert len(base) == 24
    assert all(tokens == base for tokens in others)


def test_a_race_reads_its_prompt_from_standard_input() -> None:
    result = CliRunner().invoke(app, ["race", "-", *FAKE, "-c", "kv", "--json"], input="a" * 77)
    (started,) = [line for line in result.stdout.splitlines() if '"prompt_tokens"' in line]
    assert json.loads(started)["prompt_tokens"] > 77


def test_a_failed_column_ends_with_its_sentence_after_the_table() -> None:
    result = run("race", "x" * 300, *FAKE, "-c", "kv", "--context", "64")
    assert result.exit_code == 2
    assert "KV reuse" in result.stdout
    assert "the context holds 64" in result.stderr


def test_bench_prints_a_table_and_ends_with_a_line_for_programs() -> None:
    result = run("bench", *FAKE, "--limit", "2", "-c", "lookup")
    assert result.exit_code == 0
    assert "solo: fake-loop on fake" in result.stdout
    last = json.loads(result.stdout.splitlines()[-1])
    assert [(r["column"], r["category"]) for r in last][:2] == [
        ("KV reuse", "all"),
        ("Prompt lookup", "all"),
    ]
    assert last[1]["equal"] == last[1]["prompts"] == 2
    assert "prompt 2 of 2" in result.stderr
    bare = run("bench", *FAKE, "--limit", "2", "-c", "lookup", "--json")
    assert len(json.loads(bare.stdout)) == len(last)


def test_tune_names_a_setting_that_a_race_takes(tmp_path: Path) -> None:
    prompts = tmp_path / "one.jsonl"
    prompts.write_text(json.dumps({"category": "a", "turns": ["xx"]}), encoding="utf-8")
    result = run("tune", *FAKE, "--prompts", str(prompts))
    assert result.exit_code == 0
    best = result.stdout.splitlines()[-1].removeprefix("Use: -c ")
    assert run("race", "xx", *FAKE, "-c", best).exit_code == 0


def test_a_plug_in_that_was_left_out_is_a_line_before_the_command_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problems = ("The plug-in 'a' was left out. " + "x" * 200, "The plug-in [b] was left out.")
    for room, problem in zip(("engines", "strategies"), problems, strict=True):
        monkeypatch.setattr(f"backend.{room}.registry.plugin_problems", lambda p=problem: (p,))
    result = run("race", "xx", *FAKE, "-c", "kv", "--json")
    assert result.exit_code == 0
    assert tuple(result.stderr.splitlines()) == problems
    assert all(json.loads(line) for line in result.stdout.splitlines())


def test_an_unknown_experiment_is_one_sentence_that_names_all() -> None:
    sentence = refused("bench", *FAKE, "--experiment", "pears")
    assert "'pears'" in sentence
    assert all(name in sentence for name in EXPERIMENTS)


def test_the_list_of_commands_is_there_without_importing_them() -> None:
    """What one command imports would otherwise delay every other one, and the list itself."""
    program = "import sys, backend.cli.main as m; m.main()"
    check = f"try:\n {program}\nfinally:\n print(*sys.modules)"
    listed = subprocess.run(
        [sys.executable, "-c", check, "--help"], capture_output=True, text=True, check=True
    )
    *page, modules = listed.stdout.splitlines()
    assert not {"numpy", "backend.cli.race", "backend.racing"} & set(modules.split())
    words = " ".join(page)
    for name, text in COMMANDS.items():
        assert name in words
        assert " ".join(text.split()[:3]) in words
        assert run(name, "--help").exit_code == 0


def test_the_help_names_every_experiment() -> None:
    words = run("bench", "--help").stdout.replace("\u2502", " ").split()
    assert {name for name in EXPERIMENTS if f"{name}:" in words} == set(EXPERIMENTS)


@pytest.mark.parametrize("command", [("race", "xx"), ("bench",)])
def test_an_unknown_column_is_one_sentence_that_names_all(command: tuple[str, ...]) -> None:
    sentence = refused(*command, *FAKE, "-c", "kv", "-c", "warp")
    assert "'warp'" in sentence
    assert all(name in sentence for name in strategies())


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("race", "xx", *FAKE, "-c", "lookup:k=999"), "999"),
        (("race", "xx", *FAKE, "-c", "lookup:warp=1"), "'warp'"),
        (("race", "xx", *FAKE, "-c", "grammar:grammar=own"), "own"),
        (("race", " ", *FAKE, "-c", "kv"), "prompt is empty"),
        (("race", "xx", *FAKE, "--temperature", "9"), "9"),
        (("race", "xx", *FAKE, "--grammar", "no.such.file"), "no.such.file"),
        (("bench", "--engine", "warp", "-c", "kv"), "'warp'"),
        (("verify", "--engine", "fake"), "built-in"),
        (("bench", *FAKE, "--prompts", "no.such.file"), "no.such.file"),
        (("bench", *FAKE, "--experiment", "peers"), "fake"),
        (("snapshot", "info", "0123456789abcdef"), "0123456789abcdef"),
        (("snapshot", "save", "xx", "--engine", "fake", "-c", "warp"), "'warp'"),
    ],
)
def test_what_a_user_can_fix_is_one_sentence(
    arguments: tuple[str, ...],
    part: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path))
    assert part in refused(*arguments)


def test_a_saved_column_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path))
    fake = ("--engine", "fake", "--model", "fake-loop")
    whole = json.loads(
        run("snapshot", "save", "xx", *fake, "--max-new-tokens", "30", "--json").stdout
    )
    part = json.loads(
        run("snapshot", "save", "xx", *fake, "--max-new-tokens", "10", "--json").stdout
    )
    assert part["tokens"] == whole["tokens"][:10]
    listed = json.loads(run("snapshot", "list", "--json").stdout)
    assert {entry["id"] for entry in listed} == {whole["snapshot"], part["snapshot"]}
    loaded = run("snapshot", "load", part["snapshot"], "--max-new-tokens", "20", "--json")
    assert json.loads(loaded.stdout)["tokens"] == whole["tokens"]
    assert run("snapshot", "rm", part["snapshot"], whole["snapshot"]).exit_code == 0
    assert json.loads(run("snapshot", "list", "--json").stdout) == []
