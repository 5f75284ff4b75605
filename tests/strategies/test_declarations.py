"""What strategies declare is whole, without slips, and true of what they load; one of another
package runs like ours, and each broken one is a line; a build that fails leaves nothing open.
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
from backend.engines.registry import all_precisions
from backend.errors import DerbyError
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.strategies import registry
from backend.strategies.column import default_column, names_of, parse_column, settings_of
from backend.strategies.declaration import DrafterInputs, Strategy, Weights
from backend.strategies.ours import SPECULATIVE
from backend.strategies.registry import BASELINE, DEFAULT_COLUMNS, strategies
from backend.strategies.settings import Choice, WholeNumber
from backend.types import ModelSpec, Request

ALL = [pytest.param(strategy, id=name) for name, strategy in strategies().items()]


def test_the_registry_is_consistent() -> None:
    assert {parse_column(column).name for column in DEFAULT_COLUMNS} <= set(strategies())
    assert len(set(DEFAULT_COLUMNS)) == len(DEFAULT_COLUMNS)
    assert len({strategy.title for strategy in strategies().values()}) == len(strategies())
    baseline = default_column(BASELINE)
    assert baseline.plain
    assert not baseline.strategy.settings
    assert not baseline.strategy.guesses


@pytest.mark.parametrize("strategy", ALL)
def test_a_strategy_is_whole(strategy: Strategy) -> None:
    column = default_column(strategy.name)
    assert strategies()[strategy.name] is strategy is column.strategy
    assert len(strategy.description) > 40
    assert column.with_settings(column.settings()) == column, "its own settings change nothing"
    assert parse_column(strategy.name) == column
    assert names_of([column]) == [strategy.title]
    server = strategy.name == "server"
    assert str(column) == (f"@{column.settings()['at']}" if server else strategy.name)
    assert set(settings_of(strategy)) == set(column.settings())
    assert strategy.ours <= ("grammar" in column.settings())
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


COPY = ModelSpec("built-in", "openvino", "int4")


@pytest.mark.parametrize("draft", ["hybrid", "trained"])
def test_the_trained_draft_drafts_where_there_is_one(draft: str) -> None:
    assert wanted(draft, Target("built-in")) == SHIPPED


def test_a_hybrid_falls_back_to_a_copy_that_it_can_do_without() -> None:
    """Where none was trained the int4 copy drafts; where that cannot be had either, prompt lookup
    is left.
    """
    for engine in ("openvino", "torch"):
        copy = replace(COPY, name="owner/model")
        assert wanted("hybrid", Target("owner/model", engine)) == copy
    assert wanted("hybrid", Target("owner/model", device="GPU")) == replace(copy, device="GPU")


@pytest.mark.parametrize("device", ["CUDA", "cuda:1", "AUTO"])
def test_beside_a_gpu_no_copy_is_made_for_the_cpu(device: str) -> None:
    """A model of 8 B would take 64 GB to convert. What was trained drafts there, or a copy that
    somebody names.
    """
    assert wanted("hybrid", Target("owner/model", "torch", device)) is None
    assert wanted("hybrid", Target("built-in", "torch", device)) == SHIPPED
    assert wanted("int4", Target("owner/model", "torch", device)) == replace(
        COPY, name="owner/model"
    )


def test_a_draft_by_name_is_never_replaced_by_something_else(tmp_path: Path) -> None:
    """Its configuration says whether it is a model."""
    with pytest.raises(DerbyError, match="owner/model"):
        wanted("trained", Target("owner/model"))
    (tmp_path / "w.safetensors").touch()
    for kind, is_model in (("LlamaForCausalLM", True), ("LlamaForCausalLMEagle3", False)):
        (tmp_path / "config.json").write_text(json.dumps({"architectures": [kind]}))
        expected = ModelSpec(str(tmp_path), "openvino") if is_model else tmp_path
        assert wanted(str(tmp_path), Target("owner/model")) == expected


@pytest.mark.parametrize("precision", all_precisions())
def test_a_precision_drafts_with_that_copy_of_the_target_or_with_none(precision: str) -> None:
    expected = {
        "openvino": "torch" if precision in ("bf16", "fp16") else "openvino",
        "torch": "torch" if precision in ("fp32", "bf16", "fp16") else "openvino",
    }
    for engine, runs in expected.items():
        copy = ModelSpec("owner/model", runs, precision)
        assert wanted(precision, Target("owner/model", engine)) == copy
        other = replace(copy, name="other", engine=engine, precision="fp32")
        assert wanted("other", Target("owner/model", engine)) == other
    fake = FakeEngine()
    assert wanted(precision, fake) == fake.spec


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

#: Packages with one flaw each, by their names, and what is said of it.
BROKEN = {
    "does-not-import": ("import no_such_library", "No module named 'no_such_library'"),
    "is-no-strategy": ("METHOD = 'repeat'", "no Strategy"),
    "is-named-as-ours": (
        "from backend.strategies.ours import KV_REUSE as METHOD",
        "'kv' is taken",
    ),
    "is-declared-wrongly": (
        "import backend.strategies.declaration as d; METHOD = d.Strategy('', 'Mine', 'A way.')",
        "ValueError: strategy ''",
    ),
}


def test_a_strategy_of_another_package_races_and_each_broken_one_is_a_line(tmp_path: Path) -> None:
    install(tmp_path, "my-method", REPEAT, registry.GROUP, "repeat = my_method:REPEAT")
    for name, (module, _) in BROKEN.items():
        entry = f"{name} = {name.replace('-', '_')}:METHOD"
        install(tmp_path, name, module, registry.GROUP, entry)
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
    lines = ran.stderr.splitlines()
    assert len(lines) == len(BROKEN)
    for name, (_, reason) in BROKEN.items():
        [line] = [line for line in lines if f"({name} 0.1" in line]
        assert reason in line
