"""The GPU programme on the CPU: a part's output is kept, and failures leave the others."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.errors import DerbyError
from experiments import gpu
from experiments.gpu import DONE, PARTS, run_part


def test_a_part_is_a_command_whose_output_is_kept_and_which_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        gpu.PARTS,
        "small",
        (1.0, "backend bench --engine fake --model {model} --max-new-tokens 8 -c kv --wait 0"),
    )
    assert run_part("small", tmp_path, "fake", "CPU", None, 100) == "done"
    printed = (tmp_path / "small.txt").read_text(encoding="utf-8")
    assert "KV reuse" in printed
    assert printed.endswith(f"{DONE}\n")
    assert run_part("small", tmp_path, "fake", "CPU", None, 100) == "done already"


@pytest.mark.parametrize(
    ("code", "end"),
    [(3, "ended with code 3"), (None, "stopped by its time limit")],
)
def test_a_part_that_fails_or_hangs_is_told_and_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None, end: str
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], *, timeout: float, **_: object) -> Any:
        commands.append(command)
        if code is None:
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(gpu.subprocess, "run", run)
    for part in (*PARTS, *PARTS):
        assert run_part(part, tmp_path, "a-model", "CUDA:1", Path("questions.jsonl"), 1) == end
    assert len(commands) == 2 * len(PARTS)
    assert all({"a-model", "CUDA:1"} <= set(command) for command in commands)
    assert not any("{" in word for command in commands for word in command)


def test_without_a_device_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DerbyError, match="no CUDA device"):
        gpu.device_name("CUDA")
