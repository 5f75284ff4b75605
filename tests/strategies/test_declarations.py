"""What strategies declare is whole, without slips, and true of what they load; one of another
package runs like ours; a build that fails leaves nothing open.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packages import install

from backend.decoding.seams import Drafter
from backend.engines.eagle3.checkpoint import SHIPPED
from backend.engines.fake import FakeEngine
from backend.errors import DerbyError
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.strategies import registry
from backend.strategies.column import default_column, names_of, parse_column
from backend.strategies.declaration import DrafterInputs, Strategy, Weights
from backend.strategies.ours import SPECULATIVE
from backend.strategies.registry import strategies
from backend.strategies.settings import Choice, WholeNumber
from backend.types import ModelSpec, Request

ALL = [pytest.param(strategy, id=name) for name, strategy in strategies().items()]


@pytest.mark.parametrize("strategy", ALL)
def test_a_strategy_is_whole(strategy: Strategy) -> None:
    column = default_column(strategy.name)
    assert column.with_settings(column.settings()) == column, "its own settings change nothing"
    assert parse_column(strategy.name) == column
    assert names_of([column]) == [strategy.title]
    server = strategy.name == "server"
    assert str(column) == (f"@{column.settings()['at']}" if server else strategy.name)
    for run in (*strategy.verified, *strategy.candidates):
        assert parse_column(f"{strategy.name}:{run}").name == strategy.name


def number(name: str = "size", default: int = 3, **more: Any) -> WholeNumber:
    return WholeNumber(name, "Size", "How much.", default, 1, 9, **more)


WHOLE = Strategy("ours", "Ours", "A way to decode.", (number(),))


@pytest.mark.parametrize(
    "slip",
    [
        {"name": ""},
        {"name": "a:b"},
        {"title": " "},
        {"description": ""},
        {"settings": (number(), number())},
        {"settings": (number("grammar"),)},
        {"settings": (number(default=10),)},
        {"settings": (number(fixes={"auto": False}),)},
        {"settings": (Choice("auto", "Auto", "Help.", "c", ("a", "b")),)},
    ],
)
def test_a_slip_in_a_declaration_is_refused_at_once(slip: dict[str, Any]) -> None:
    assert WHOLE.settings
    with pytest.raises(ValueError, match="strategy"):
        replace(WHOLE, **slip)


class Target(FakeEngine):
    """A target that is some model."""

    def __init__(self, name: str, engine: str = "openvino", device: str = "CPU") -> None:
        super().__init__(ModelSpec(name, engine, device=device))


def wanted(draft: str, target: FakeEngine) -> Weights:
    column = default_column("speculative").with_settings({"draft": draft})
    return column.strategy.weights(column.settings(), target)


COPY = ModelSpec("owner/model", "openvino", "int4")


@pytest.mark.parametrize(
    ("draft", "name", "engine", "device", "expected"),
    [
        ("hybrid", "built-in", "openvino", "CPU", SHIPPED),
        ("trained", "built-in", "openvino", "CPU", SHIPPED),
        ("hybrid", "built-in", "torch", "CUDA", SHIPPED),
        # Where none was trained the int4 copy drafts;
        ("hybrid", "owner/model", "openvino", "CPU", COPY),
        ("hybrid", "owner/model", "torch", "CPU", COPY),
        ("hybrid", "owner/model", "openvino", "GPU", replace(COPY, device="GPU")),
        # but beside a GPU none is made for the CPU, unless somebody names it.
        ("hybrid", "owner/model", "torch", "CUDA", None),
        ("hybrid", "owner/model", "torch", "cuda:1", None),
        ("int4", "owner/model", "torch", "AUTO", COPY),
        ("bf16", "owner/model", "torch", "CUDA", ModelSpec("owner/model", "torch", "bf16", "CUDA")),
        ("other", "owner/model", "torch", "CPU", ModelSpec("other", "torch")),
    ],
)
def test_the_trained_draft_drafts_or_else_a_copy(
    draft: str, name: str, engine: str, device: str, expected: Weights
) -> None:
    assert wanted(draft, Target(name, engine, device)) == expected


def test_a_draft_by_name_is_never_replaced_by_something_else(tmp_path: Path) -> None:
    """Its configuration says whether it is a model."""
    with pytest.raises(DerbyError, match="owner/model"):
        wanted("trained", Target("owner/model"))
    (tmp_path / "w.safetensors").touch()
    for kind, is_model in (("LlamaForCausalLM", True), ("LlamaForCausalLMEagle3", False)):
        (tmp_path / "config.json").write_text(json.dumps({"architectures": [kind]}))
        expected = ModelSpec(str(tmp_path), "openvino") if is_model else tmp_path
        assert wanted(str(tmp_path), Target("owner/model")) == expected


def test_a_build_that_fails_leaves_no_session_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_inputs: DrafterInputs) -> Drafter:
        raise RuntimeError("a slip")

    broken = replace(SPECULATIVE, build=failing)
    known = {"speculative": broken}
    monkeypatch.setattr("backend.strategies.column.strategies", lambda: known)
    models, columns = LoadedModels(), (parse_column("speculative:draft=fake-draft"),)
    board = Scoreboard(columns)
    Race(Request("x", 8), columns, ModelSpec("fake", "fake")).run(models, board.add, lambda: False)
    assert board.scores[0].message
    for name in ("fake", "fake-draft"):
        engine = models.get(ModelSpec(name, "fake"), print)
        assert isinstance(engine, FakeEngine)
        assert engine.open_sessions == 0, name


ROOT = Path(__file__).resolve().parents[2]

#: The strategy that docs/extend.md writes: its drafter and its declaration.
EXTEND = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
REPEAT = "".join(re.findall(r"```python\n(.*?)```", EXTEND, re.DOTALL)[:2])


def test_a_strategy_of_another_package_races(tmp_path: Path) -> None:
    install(tmp_path, "my-method", REPEAT, registry.GROUP, "repeat = my_method:REPEAT")
    places = filter(None, (str(tmp_path), os.environ.get("PYTHONPATH")))
    command = ["race", "xx", "--engine", "fake", "--model", "fake-loop", "--max-new-tokens", "40"]
    ran = subprocess.run(
        [sys.executable, "-m", "backend", *command, "-c", "kv", "-c", "repeat", "--json"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(places), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    steps = [event for event in map(json.loads, ran.stdout.splitlines()) if event["kind"] == "Step"]
    plain, ours = (
        [token for step in steps if step["column"] == column for token in step["tokens"]]
        for column in (0, 1)
    )
    assert ours == plain
    assert sum(step["drafted"] for step in steps if step["column"] == 1) > 0
    assert not ran.stderr
