"""The programme for CUDA devices, in miniature on the CPU: every part runs, is kept, goes on."""

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import chat_model
import pytest
import torch

from backend.bench.prompts import PROMPTS
from backend.errors import DerbyError
from backend.racing.models import LoadedModels
from backend.types import ModelSpec
from experiments import gpu
from experiments.gpu import DONE, FULL, PARTS, SHORT, Journal, Line, Part, Task, ended, run_part


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Task]:
    """On a tiny model that can be chatted with."""
    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DECODE_DERBY_CACHE", str(tmp_path_factory.mktemp("cache")))
        # Two would wait for each other longer than they compute.
        patch.setattr("backend.engines.torch.engine.threads", lambda: 1)
        model = chat_model.make(tmp_path_factory.mktemp("chat"))
        target = ModelSpec(str(model), "torch", "fp32", "CPU")
        folder = tmp_path_factory.mktemp("results")
        yield Task(target, PROMPTS[:1], folder, SHORT, LoadedModels(idle_warm_up=True))
    torch.set_num_threads(before)


def a_part(*jobs: Any) -> Part:
    """One that measures these jobs but those that are known; an error among them ends it."""

    def lines(task: Task, journal: Journal, _seconds: float) -> Iterator[Line]:
        for job in jobs:
            if isinstance(job, Exception):
                raise job
            if job not in journal.of(task.digest):
                yield {"of": task.digest, "job": job}

    return Part("passes", "for a test", 1.0, lines, lambda *_: None)


@pytest.mark.thorough
def test_all_parts_run_in_miniature(
    task: Task, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = count(step=0.05)  # a slow machine stops nothing
    monkeypatch.setattr(gpu, "monotonic", lambda: next(clock))
    monkeypatch.setattr(gpu, "SYNTHESIS", 0.05)
    assert {name: run_part(part, task, 4) for name, part in PARTS.items()} == dict.fromkeys(
        PARTS, DONE
    )
    equality = task.journal("equality").of(task.digest).values()
    assert {job["job"] for job in equality if job.get("unequal")} == set()
    assert list(task.journal("passes").of(task.digest)["fp32"]["ms"]) == ["1", "2", "8"]
    for part in PARTS.values():
        part.tell(task, task.journal(part.name))
    told = capsys.readouterr().out
    assert "1 of 1 cases equal" in told
    assert "Lookahead" in told
    files = {path: path.read_bytes() for path in task.folder.rglob("*.jsonl")}
    assert len(files) == len(PARTS)
    assert str(task.folder) not in told + str(b"".join(files.values()))
    for part in PARTS.values():
        run_part(part, task, 4)
    assert {path: path.read_bytes() for path in task.folder.rglob("*.jsonl")} == files


def test_what_a_part_found_outlives_its_failure_and_its_limit(task: Task, tmp_path: Path) -> None:
    task = replace(task, folder=tmp_path)
    assert run_part(a_part("a", RuntimeError("the device is gone")), task, 9).startswith("failed: ")
    assert "a" in task.journal("passes").of(task.digest)
    assert run_part(a_part("a", "b", "c"), task, 0) == "stopped by its time limit"
    (file,) = tmp_path.rglob("*.jsonl")
    file.write_text(file.read_text(encoding="utf-8") + '{"of', encoding="utf-8")  # killed
    assert run_part(a_part("a", "b", "c"), task, 9) == DONE
    assert {"a", "b", "c"} <= set(task.journal("passes").of(task.digest))
    other = replace(task, size=FULL)
    assert ended(other.journal("passes"), other) == "", "those of other conditions do not count"


@pytest.mark.parametrize(
    ("end", "said"),
    [(-11, "ended by itself with code -11"), (None, "was ended 90 s after its time")],
)
def test_a_part_that_crashes_or_hangs_is_recorded_and_the_next_one_runs(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: int | None, said: str
) -> None:
    task, asked = replace(task, folder=tmp_path), list[str]()

    def run(argv: list[str], *, timeout: float, **_: object) -> Any:
        asked.append(argv[argv.index("--only") + 1])
        assert timeout <= 60 + gpu.PATIENCE
        if end is None:
            raise subprocess.TimeoutExpired(argv, timeout)
        return subprocess.CompletedProcess(argv, end)

    monkeypatch.setattr(gpu.subprocess, "run", run)
    gpu.run_all(task, None, 60)
    assert asked == list(PARTS)
    assert {ended(task.journal(name), task) for name in PARTS} == {said}


def test_without_a_device_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DerbyError, match="no CUDA device"):
        gpu.require_device("CUDA")
    monkeypatch.setattr(gpu, "find_spec", lambda _: None)
    with pytest.raises(DerbyError, match="no PyTorch"):
        gpu.require_device("CUDA")
