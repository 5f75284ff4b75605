"""The commands on the fake engine: what they print, and one sentence for what a user can fix."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chat_model
import pytest
from lib import without_template
from typer.testing import CliRunner, Result

from backend.cli.console import read_input
from backend.cli.main import COMMANDS, app
from backend.errors import DerbyError
from backend.events import from_json
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import parse_column
from backend.text import ByteTokenizer

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
    assert sentence.endswith((".", "?")) or " Where: /" in sentence
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
    result = run("race", "xx", *FAKE, "-c", "kv", "-c", "stateless@torch/bf16")
    assert result.exit_code == 2
    assert "KV reuse" in result.stdout
    assert "'fake-loop'" in result.stderr


def test_a_race_that_no_column_ran_is_its_sentence_alone() -> None:
    """The sentence came twice, around an empty table and a ledger that judged its timings."""
    for wrong in (("-c", "kv", "--context", "64"), ("-c", "kv@torch/bf16/CUDA")):
        assert refused("race", "x" * 300, *FAKE, *wrong)


def test_a_program_s_values_stand_below_its_text() -> None:
    """They were in --json and on the page alone."""
    result = run("race", 'A {{select "colour" "red|blue"}}.', *FAKE, "-c", "kv")
    assert result.exit_code == 0
    assert json.loads(result.stdout.splitlines()[3])["colour"] in ("red", "blue")


def test_bench_prints_a_table_a_model_ends_with_a_line_for_programs_and_goes_on(
    tmp_path: Path,
) -> None:
    asked = ("bench", *FAKE, "--also-model", "fake", "--wait", "0", "--limit", "2", "-c", "lookup")
    kept = ("--results", str(tmp_path / "rows.jsonl"))
    result = run(*asked, *kept)
    assert result.exit_code == 0
    for model in ("fake-loop", "fake"):
        assert f"bench: {model} on fake" in result.stdout
    last = json.loads(result.stdout.splitlines()[-1])
    assert [(r["column"], r["category"]) for r in last][:2] == [
        ("KV reuse", "all"),
        ("Prompt lookup", "all"),
    ]
    assert last[1]["equal"] == last[1]["prompts"] == 2
    assert "run 4 of 4" in result.stderr
    again = run(*asked, *kept, "--json")
    assert json.loads(again.stdout) == last, "nothing is measured again"
    assert "belong to another benchmark" in refused(*asked, *kept, "--seed", "1")


def test_bench_sends_raw_prompts_where_it_is_asked_to() -> None:
    """Models without a chat template could not be measured."""
    asked = ("bench", *FAKE, "--wait", "0", "--limit", "1", "-c", "kv", "--json")
    in_template, raw = (json.loads(run(*asked, *more).stdout) for more in ((), ("--raw",)))
    assert raw[0]["prompts"] == in_template[0]["prompts"] == 1
    assert raw != in_template


def test_bench_sends_raw_prompts_where_there_is_no_chat_template(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All columns of a base model failed, and only --raw measured them."""
    monkeypatch.setattr(ByteTokenizer, "encode", without_template)
    result = run("bench", *FAKE, "--wait", "0", "--limit", "2", "-c", "kv", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)[0]["prompts"] == 2
    assert result.stderr.count("no chat template") == 1


def test_bench_names_the_column_that_failed_after_its_table() -> None:
    result = run("bench", *FAKE, "--wait", "0", "--limit", "1", "-c", "stateless@torch/bf16")
    assert result.exit_code == 2
    assert "KV reuse" in result.stdout
    assert result.stderr.splitlines()[-1].startswith("Stateless (torch/bf16), prompt 1: ")


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


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("race", "xx", *FAKE, "-c", "kv", "-c", "warp"), "'warp'"),
        (("bench", *FAKE, "-c", "warp"), "'warp'"),
        (("race", "xx", *FAKE, "-c", "lookup:k=999"), "999"),
        (("race", "xx", *FAKE, "-c", "lookup:warp=1"), "'warp'"),
        (("race", "xx", *FAKE, "-c", "grammar:grammar=own"), "own"),
        (("race", " ", *FAKE, "-c", "kv"), "prompt is empty"),
        (("race", "xx", *FAKE, "--temperature", "9"), "9"),
        (("race", "xx", *FAKE, "--grammar", "no.such.file"), "no.such.file"),
        (("bench", "--engine", "warp", "-c", "kv"), "'warp'"),
        (("verify", "--engine", "fake"), "built-in"),
        (("bench", *FAKE, "--prompts", "no.such.file"), "no.such.file"),
        (("rase",), "'rase'"),
        (("bench", *FAKE, "--warp"), "--warp"),
        (("bench", *FAKE, "--limit", "many"), "many"),
        (("bench", *FAKE, "--limit", "-1"), "-1"),
        (("tune", *FAKE, "--limit", "-1"), "-1"),
        (("verify", "--prompts", "0"), "0"),
        (("verify", "--engine", "torch", "--prompts", "1", "--first", "6"), "There are 5 cases"),
        (("race", "bad \udcff prompt", *FAKE, "-c", "kv"), "Character 5 of the prompt"),
        (("race", "xx", *FAKE, "-c", "kv", "--stop", "\udcff"), "Character 1 of the stop string"),
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


ROOT = Path(__file__).resolve().parents[2]


def start(*arguments: str | bytes, **options: Any) -> subprocess.Popen[bytes]:
    """The program as a shell starts it."""
    command = [sys.executable, "-m", "backend", *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, **{"cwd": ROOT} | pipes | options)


def ended(*arguments: str | bytes, given: bytes = b"", **options: Any) -> tuple[int, str, str]:
    """Exit code, standard output and error of the program."""
    with start(*arguments, **options) as program:
        out, err = program.communicate(given)
    return program.returncode, (out or b"").decode(), (err or b"").decode()


@pytest.mark.thorough
def test_what_libraries_say_of_a_damaged_model_is_left_out(tmp_path: Path) -> None:
    """A bar of transformers and its report of eight lines stood above the sentence."""
    config = chat_model.make(tmp_path) / "config.json"
    stated = json.loads(config.read_text(encoding="utf-8")) | {"num_hidden_layers": 4}
    config.write_text(json.dumps(stated), encoding="utf-8")
    code, _, said = ended("race", "a", "-c", "kv", "--engine", "torch", "--model", str(tmp_path))
    assert code == 2
    (sentence,) = said.splitlines()
    assert "lack 9 tensors" in sentence


@pytest.mark.parametrize("prompt", [b"bad \xff prompt", b"-"])
def test_a_prompt_that_is_not_utf_8_is_one_sentence(prompt: bytes) -> None:
    """On the command line and on standard input it was a traceback."""
    code, _, err = ended("race", prompt, *FAKE, "-c", "kv", given=b"bad \xff prompt")
    assert code == 2
    assert err.count("\n") == 1
    assert "Character 5 of the prompt" in err


@pytest.mark.parametrize("utf8", ["0", "1"])
def test_the_locale_does_not_matter(utf8: str) -> None:
    """Where Python takes the locale C at its word, each umlaut was two halves of nothing."""
    environment = {
        "PATH": os.defpath,
        "LC_ALL": "C",
        "PYTHONUTF8": utf8,
        "PYTHONCOERCECLOCALE": "0",
    }
    prompt = "h\u00f6rt \u4f60\u597d"
    asked = ("race", *FAKE, "-c", "kv")
    code, out, err = ended(*asked, prompt.encode(), "--json", env=environment)
    assert (code, err) == (0, "")
    started = json.loads(out.splitlines()[0])
    assert started["prompt_tokens"] == len(f"User: {prompt}\nAnswer: ".encode())
    assert ended(*asked, b"-", given=prompt.encode(), env=environment)[0] == 0


def test_an_endless_prompt_is_refused_instead_of_read() -> None:
    """It was read until the memory ran out."""
    with Path("/dev/zero").open("rb") as zeros:
        code, _, err = ended("race", "-", *FAKE, stdin=zeros)
    assert code == 2
    assert "longer than" in err


def test_a_closed_standard_input_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(DerbyError, match="give the prompt as an argument"):
        read_input()


@pytest.fixture
def endless() -> Iterator[subprocess.Popen[bytes]]:
    """A race that goes on, and has told its first event."""
    asked = ("--engine", "fake", "--model", "fake-slow", "--max-new-tokens", "8000", "-c", "kv")
    with start("race", "xx", *asked, "--json") as program:
        assert program.stdout
        assert program.stdout.readline()
        yield program


def test_ctrl_c_ends_it_with_130_and_no_traceback(endless: subprocess.Popen[bytes]) -> None:
    endless.send_signal(signal.SIGINT)
    _, err = endless.communicate()
    assert endless.returncode == 130
    assert b"Traceback" not in err


@pytest.mark.thorough
def test_ctrl_c_in_a_conversion_keeps_nothing_half_written(tmp_path: Path) -> None:
    """Gigabytes of a partial folder stayed until the next start."""
    model, cache = chat_model.make(tmp_path), tmp_path / "cache"
    environment = os.environ | {"DECODE_DERBY_CACHE": str(cache)}
    with start("race", "xx", "--model", str(model), "-c", "kv", env=environment) as program:
        while not list(cache.glob("*.partial/*")):
            assert program.poll() is None, "it ended without converting"
            time.sleep(0.05)  # or it would be in the conversion's way
        program.send_signal(signal.SIGINT)
        program.communicate()
    assert program.returncode == 130
    assert not [path for path in cache.iterdir() if path.is_dir()]


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
    """Whatever a command raised was a traceback of 40 lines through typer and click."""

    def fail(self: object, *_: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr("backend.cli.race.parse_column", fail)
    result = run("race", "xx", *FAKE)
    assert result.exit_code == 1
    assert "reference" in result.stderr
    assert "KeyError: 'ours'" in caplog.text


def test_a_set_up_without_a_cache_folder_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "a file"
    place.write_text("")
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(place))
    assert str(place) in refused("setup")


@pytest.mark.model
@pytest.mark.thorough
def test_verify_goes_on_at_the_case_where_it_was_ended() -> None:
    asked = ("--engine", "torch", "--prompts", "1", "--max-new-tokens", "4", "--first", "5")
    told = run("verify", *asked)
    assert told.exit_code == 0
    assert told.stdout.startswith(
        "5/5 torch fp32 explain T=1.0, min-p 0.1, repetition-penalty 1.2 seed=1: "
    )
    assert told.stdout.endswith("1 of 1 cases: all columns equal\n")
