"""What only developers run is importable and says what it takes; nothing of it is measured here."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.__main__ import EXPERIMENTS, app
from experiments.peers import Answer, result_of


@pytest.mark.parametrize(
    "name", [*(each.name for each in EXPERIMENTS), "gpu", "specbench", "train"]
)
def test_every_experiment_says_what_it_takes(name: str) -> None:
    assert name in CliRunner().invoke(app, ["--help"]).stdout
    asked = CliRunner().invoke(app, [name, "--help"])
    assert asked.exit_code == 0
    assert ("--answer-tokens" if name == "train" else "--prompts") in asked.stdout


def test_spec_benchs_table_has_a_line_a_method_and_goes_on_from_rows(tmp_path: Path) -> None:
    """MT-bench's eight categories are one, KV reuse comes first, and what is measured already is
    not measured again.
    """
    questions, rows = tmp_path / "questions.jsonl", tmp_path / "rows.jsonl"
    asked = [("writing", "a"), ("stem", "b"), ("qa", "c"), ("qa", "d")]
    lines = [json.dumps({"category": name, "turns": [text]}) for name, text in asked]
    questions.write_text("\n".join(lines), encoding="utf-8")
    command = ["specbench", "--prompts", str(questions), "--engine", "fake", "--results", str(rows)]
    command += ["--model", "fake-loop", "--max-new-tokens", "60", "--wait", "0"]
    command += ["-c", "lookup", "-c", "lookup:k=4", "-c", "speculative:draft=trained"]
    first, again = (CliRunner().invoke(app, command).stdout for _ in range(2))
    table = [line.split(" | ") for line in first.splitlines() if line.startswith("|")]
    assert table[0] == ["| method", "all (4)", "multi-turn (2)", "qa (2)", "text equal |"]
    assert [line[0] for line in table[2:]] == [
        "| KV reuse",
        "| Prompt lookup",
        "| Prompt lookup (k=4)",
    ]
    assert all(line[-1] == "4 of 4 |" for line in table[2:])
    assert all(cell.endswith(", 1.00") for cell in table[2][1:-1])  # KV reuse's tokens per pass
    assert all(float(cell.split(", ")[1]) >= 1 for line in table[3:] for cell in line[1:-1])
    assert again == first
    assert len(rows.read_text(encoding="utf-8").splitlines()) == len(asked)


def test_a_peer_is_compared_over_as_many_tokens_as_both_have() -> None:
    ours = Answer((1, 2, 3, 4), (0.0, 1.0, 2.0, 9.0))
    theirs = Answer((1, 2, 3), (5.0, 7.0, 9.0))
    result = result_of("theirs", [(ours, theirs), (theirs, theirs)])
    assert (result.ratio, result.spread) == (1.5, (1.0, 2.0))
    assert (result.equal, result.prompts) == (1, 2)


def test_the_interval_of_a_column_against_itself_is_counted() -> None:
    asked = ["coverage", "--engine", "fake", "--model", "fake-loop", "--rounds", "2", "--wait", "0"]
    printed = CliRunner().invoke(app, asked).stdout
    assert json.loads(printed.splitlines()[-1])[0]["races"] == 2
