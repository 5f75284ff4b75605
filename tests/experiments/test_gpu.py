"""The programme for CUDA devices, in miniature on the CPU: every part runs, is kept, goes on."""

import json
import subprocess
from collections.abc import Iterator, Sequence
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
from experiments import gpu as command
from experiments.gpu_parts import FULL, PARTS, SHORT, Part, Task, require_device, run_part
from experiments.gpu_results import DONE, RUNNING, Line, read_record, record_path, summary


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
        models = LoadedModels(idle_warm_up=True)
        yield Task(target, PROMPTS[:1], folder, SHORT, 1.0, lambda _: None, models)
    torch.set_num_threads(before)


def a_part(*results: Any, name: str = "passes") -> Part:
    """One that yields these lines but those that are known, and raises what is an error."""

    def lines(_task: Task, earlier: Sequence[Line], _seconds: float) -> Iterator[Line]:
        for each in results:
            if isinstance(each, Exception):
                raise each
            if each not in earlier:
                yield each

    return Part(name, "for a test", 1.0, lines)


def test_all_parts_run_in_miniature(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count(step=0.05)  # a slow machine stops nothing
    monkeypatch.setattr("experiments.gpu_parts.monotonic", lambda: next(clock))
    monkeypatch.setattr("experiments.gpu_parts.SYNTHESIS", 0.05)
    records = [run_part(part, task, 4) for part in PARTS]
    assert {record.part: record.state for record in records} == {p.name: DONE for p in PARTS}
    equality, passes, plain, columns, training = ({line["of"]: line for line in r.lines}
                                                  for r in records)  # fmt: skip
    cases = [line for line in equality.values() if "equal" in line]
    assert cases
    assert all(line["equal"] for line in cases), cases
    assert list(passes["fp32"]["ms"]) == ["1", "2", "8"]
    assert {line["equal"] for line in plain.values()} == {1}
    assert all(line["ratio"] > 0 for line in plain.values())
    for line in (columns["question 1"], training["question 1"]):
        assert all(each["equal"] for each in line["columns"].values() if each["lossless"])
    looked_ahead = [name for name in columns["question 1"]["columns"] if "Lookahead" in name]
    assert len(looked_ahead) == 4
    assert len(training["fit"]["right at each draft step"]) == 4
    page = summary(records)
    assert page.startswith("# device CPU")
    assert all(f"## {part.name}: done" in page for part in PARTS)
    assert str(task.folder) not in page + "".join(p.read_text() for p in task.folder.glob("*.json"))
    before = {path: path.read_bytes() for path in task.folder.glob("*.json")}
    for part in PARTS:
        run_part(part, task, 4)
    assert {path: path.read_bytes() for path in task.folder.glob("*.json")} == before


def test_what_a_part_found_outlives_its_failure(task: Task, tmp_path: Path) -> None:
    task = replace(task, folder=tmp_path)
    broken = a_part({"of": "a"}, RuntimeError("the device is gone"), {"of": "b"})
    record = run_part(broken, task, 9)
    assert record.state.startswith("failed: ")
    assert json.loads(record_path(tmp_path, "passes").read_text())["lines"] == [{"of": "a"}]
    record = run_part(a_part({"of": "a"}, {"of": "b"}), task, 9)
    assert (record.state, record.lines) == (DONE, [{"of": "a"}, {"of": "b"}])


def test_lines_that_failed_are_tried_again(task: Task, tmp_path: Path) -> None:
    task = replace(task, folder=tmp_path)
    record = run_part(a_part({"of": "a"}, {"of": "b", "failed": "no compiler"}), task, 9)
    assert record.state != DONE
    record = run_part(a_part({"of": "a"}, {"of": "b", "ratio": 1.0}), task, 9)
    assert (record.state, record.lines[1]) == (DONE, {"of": "b", "ratio": 1.0})


def test_a_part_stops_at_its_limit_and_goes_on_next_time(task: Task, tmp_path: Path) -> None:
    task = replace(task, folder=tmp_path)
    part = a_part({"of": "a"}, {"of": "b"})
    assert run_part(part, task, 0).lines == [{"of": "a"}]
    assert read_record(tmp_path, "passes", task.conditions).state == "stopped by its time limit"
    record = run_part(part, task, 0)
    assert record.lines == [{"of": "a"}, {"of": "b"}]


def test_results_of_other_conditions_are_not_gone_on_from(task: Task, tmp_path: Path) -> None:
    task = replace(task, folder=tmp_path)
    run_part(a_part({"of": "a"}), task, 9)
    other = replace(task, size=FULL)
    assert read_record(tmp_path, "passes", task.conditions).state == DONE
    assert read_record(tmp_path, "passes", other.conditions).lines == []


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
        assert timeout <= 60 * task.minutes + command.PATIENCE
        if end is None:
            raise subprocess.TimeoutExpired(argv, timeout)
        return subprocess.CompletedProcess(argv, end)

    monkeypatch.setattr(command.subprocess, "run", run)
    command.run_all(task, None)
    assert asked == [part.name for part in PARTS]
    states = {read_record(tmp_path, part.name, task.conditions).state for part in PARTS}
    assert states == {said}
    assert RUNNING not in states


def test_without_a_device_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DerbyError, match="no CUDA device"):
        require_device("CUDA")
    monkeypatch.setattr("experiments.gpu_parts.find_spec", lambda _: None)
    with pytest.raises(DerbyError, match="no PyTorch"):
        require_device("CUDA")
