"""Races on folders that a user might have: drafts whose tokens have other roles."""

import json
from pathlib import Path

import pytest
from chat_model import make

from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import default_column
from backend.types import ModelSpec, Request, Sampling


def raced(request: Request, target: Path, *names: str, **settings: str | bool) -> Scoreboard:
    """KV reuse and columns with these settings."""
    columns = (default_column("kv"), *(default_column(n).with_settings(settings) for n in names))
    board = Scoreboard(columns)
    spec = ModelSpec(str(target), "torch", "fp32", "CPU")
    Race(request, columns, spec).run(LoadedModels(), board.add, lambda: False)
    assert [score.message for score in board.scores] == [""] * len(columns)
    return board


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_targets_roles_of_tokens_rule_in_a_draft(tmp_path: Path, temperature: float) -> None:
    """The draft of the target's own weights and vocabulary calls other tokens its ends."""
    target, draft = make(tmp_path / "target"), make(tmp_path / "draft")
    for file, changes in (
        ("config.json", {"eos_token_id": 70, "bos_token_id": 1}),
        ("generation_config.json", {"eos_token_id": 70, "bos_token_id": 1}),
        ("tokenizer_config.json", {"eos_token": "<|im_start|>", "bos_token": "<|im_end|>"}),
    ):
        path = draft / file
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    request = Request("Say a b c", 40, Sampling(temperature, seed=5))
    kv, speculative = raced(request, target, "speculative", draft=str(draft), auto=False).scores
    assert kv.tokens == speculative.tokens
    assert len(kv.tokens) == 40
    assert speculative.acceptance == 1.0, "the same weights guess right"
