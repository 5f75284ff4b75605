"""Limits and checkpoints that are refused in one sentence, which names what is wrong."""

import shutil
from pathlib import Path

import chat_model
import pytest
from damaged import Damage, holding, stating, with_weights, without

from backend.engines.registry import engine_named
from backend.errors import DerbyError
from backend.limits import limits_of
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import default_column
from backend.types import ModelSpec, Request


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("columns", "columns"),
        ("colums=3", "colums"),
        ("columns=-1", "-1"),
        ("tokens=1e3", "1e3"),
        ("=3", "''"),
        (f"columns={'9' * 1_000_000}", "99999"),
    ],
)
def test_a_limit_is_refused(text: str, named: str) -> None:
    with pytest.raises(DerbyError, match=named) as refused:
        limits_of([text], public=False)
    assert len(str(refused.value)) < 500


def test_columns_that_guess_are_refused_where_a_pass_takes_one_token() -> None:
    column, target = default_column("lookup"), ModelSpec("fake-one-token", "fake")
    board = Scoreboard([column])
    Race(Request("x"), (column,), target).run(LoadedModels(), board.add, lambda: False)
    assert "one token at a time" in board.scores[0].message


ONE = "model.layers.1.mlp.up_proj.weight"

#: What is wrong with a checkpoint, and what the sentence names.
CHECKPOINTS: dict[str, tuple[Damage, str]] = {
    "one missing": (with_weights(lambda tensors: tensors.pop(ONE)), ONE),
    "a layer missing": (stating("config.json", num_hidden_layers=4), "layers.3"),
    "other shapes": (stating("config.json", intermediate_size=40), "down_proj"),
    "no tokenizer": (
        without("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
        "tokenizer.json",
    ),
    "config is a list": (holding("config.json", "[]"), "config.json"),
    "config is cut": (holding("config.json", '{"model_type": "ll'), "config.json"),
    "config without a type": (holding("config.json", "{}"), "config.json"),
    "config without layers": (stating("config.json", num_hidden_layers=None), "config.json"),
    "end of text by name": (
        stating("generation_config.json", eos_token_id=["</s>"]),
        "eos_token_id",
    ),
    "tokenizer of nothing": (holding("tokenizer.json", "{}"), "added_tokens"),
    "its own code": (
        stating("config.json", model_type="mystery", auto_map={"AutoConfig": "mystery.Config"}),
        "standard architecture",
    ),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that can be chatted with."""
    return chat_model.make(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("engine", ["torch", "openvino"])
@pytest.mark.parametrize(("damage", "named"), CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_a_damaged_checkpoint_is_refused(
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Damage,
    named: str,
    engine: str,
) -> None:
    """Missing weights were drawn at random, and raced; most of the others were internal errors, and
    some passed on the advice to run the repository's code.
    """
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    shutil.copytree(whole, folder)
    damage(folder)
    with pytest.raises(DerbyError, match=named) as refused:
        engine_named(engine).open(ModelSpec(str(folder), engine), lambda _: None)
    assert len(str(refused.value)) < 400
    assert "trust_remote_code" not in str(refused.value)
