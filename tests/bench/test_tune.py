"""Tune runs every candidate while it can win, and names none that is not shown to be faster."""

import pytest

from backend.bench.plan import Plan
from backend.bench.prompts import PROMPTS
from backend.bench.tune import _candidates, contenders, tune
from backend.errors import DerbyError
from backend.racing.models import LoadedModels
from backend.strategies.column import default_column
from backend.types import ModelSpec, Request


def plan(prompts: int, tokens: int, name: str = "fake-loop", engine: str = "fake") -> Plan:
    return Plan(PROMPTS[:prompts], (), Request("-", tokens), ModelSpec(name, engine))


def test_tuning_runs_every_candidate_and_names_none_that_is_not_shown_to_be_faster() -> None:
    tuning = tune(plan(2, 200), LoadedModels(), lambda _: None)
    rows = {row.column: row for row in tuning.results}
    assert {"lookup:k=16", "speculative", "lookahead", "lookup"} <= set(rows)
    assert len(rows) == len(tuning.results)
    assert not any("trained" in name for name in rows), "the fake has no trained draft"
    assert tuning.baseline == "kv"
    assert tuning.best is None, "two prompts show of no setting that it is faster"
    assert rows["lookup:k=16"].prompts == 2


def test_where_no_family_runs_the_reason_is_told() -> None:
    lines = list[str]()
    with pytest.raises(DerbyError, match="No setting could be run"):
        tune(plan(1, 24, "fake-one-token"), LoadedModels(), lines.append)
    assert any("computes one token at a time" in line for line in lines)


def test_what_is_tuned_follows_the_model() -> None:
    for name, engine, library in (
        ("mine.gguf", "openvino", "llamacpp"),
        ("mine", "openvino", "openvino_genai"),
        ("mine", "torch", "transformers"),
    ):
        names = {column.name for column in _candidates(plan(1, 8, name, engine))}
        ours = {"lookup", "speculative", "lookahead"} if name == "mine" else set[str]()
        assert names == {*ours, library}


def test_columns_that_can_no_longer_win_leave() -> None:
    """Those that lose half of all prompts, two at least, to the leader or to the baseline."""
    slow, leader, close, mixed = map(default_column, ("kv", "lookup", "lookahead", "grammar"))
    speedups = {slow: [0.7, 1.1], leader: [1.5, 1.4], close: [1.45, 1.38], mixed: [1.6, 1.0]}
    first = {column: ratios[:1] for column, ratios in speedups.items()}
    assert contenders(first, 2) == contenders(speedups, 6) == [*speedups]
    assert contenders(speedups, 4) == [leader, close, mixed]
    assert contenders({slow: [0.9, 0.8]}, 4) == [], "the baseline has won"
    assert contenders({slow: [0.0, 0.0]}, 4) == [slow], "short answers tell nothing"
