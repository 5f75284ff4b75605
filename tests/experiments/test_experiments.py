"""What only developers run: every command says what it takes, and coverage counts intervals. The
GPU programme keeps a part's output, and a part that fails or hangs leaves the others.
"""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from backend.results.intervals import Ratio
from experiments import gpu
from experiments.__main__ import app
from experiments.coverage import summary


def test_intervals_are_counted_that_hold_what_repeats_show() -> None:
    command = ["coverage", "--engine", "fake", "--model", "fake-loop", "--rounds", "2"]
    more = ["--limit", "1", "--max-new-tokens", "24", "--wait", "0"]
    result = CliRunner().invoke(app, [*command, *more])
    assert result.exit_code == 0
    assert "lookahead: " in result.stdout
    ratios = [Ratio(1.2, low, 1.3) for low in (0.9, 0.95, 0.99, 1.1)]
    assert summary([ratios], 1.0).startswith("3 of 4 intervals")
    assert summary([ratios]).startswith("4 of 4 intervals"), "their median is 1.2"


def test_a_part_is_a_command_whose_output_is_kept_and_which_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "backend bench --engine fake --model {model} --max-new-tokens 8 -c kv --wait 0"
    monkeypatch.setitem(gpu.PARTS, "small", (1.0, command))
    assert gpu.run_part("small", tmp_path, "fake", "CPU", None, 100) == "done"
    assert "KV reuse" in (tmp_path / "small.txt").read_text(encoding="utf-8")
    assert gpu.run_part("small", tmp_path, "fake", "CPU", None, 100) == "done already"


@pytest.mark.parametrize("code", [3, None])
def test_a_part_that_fails_or_hangs_is_told_and_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], *, timeout: float, **_: object) -> Any:
        commands.append(command)
        if code is None:
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(gpu.subprocess, "run", run)
    for part in (*gpu.PARTS, *gpu.PARTS):
        end = gpu.run_part(part, tmp_path, "a-model", "CUDA:1", Path("questions.jsonl"), 1)
        assert not end.startswith("done")
    assert len(commands) == 2 * len(gpu.PARTS)
    assert all({"a-model", "CUDA:1"} <= set(command) for command in commands)
    assert not any("{" in word for command in commands for word in command)
