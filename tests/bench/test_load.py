"""Many requests at once write what each writes alone, and are predicted."""

from dataclasses import replace
from pathlib import Path

import pytest

from backend.bench.load import load
from backend.bench.plan import Plan
from backend.bench.prompts import PROMPTS
from backend.costs import measure_load
from backend.errors import DerbyError
from backend.racing import models
from backend.racing.models import LoadedModels
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request


def plan(*columns: str, tokens: int = 40) -> Plan:
    target = ModelSpec("fake-loop", "fake")
    return Plan(PROMPTS[:3], tuple(map(parse_column, columns)), Request("-", tokens), (target,))


def test_load_runs_every_column_at_every_number_of_requests(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path))
    monkeypatch.setattr(measure_load, "REQUESTS", (1, 2, 5))
    given = plan("lookup", "lookahead", tokens=24)
    results = load(given, LoadedModels(), lambda _: None)
    assert [(r.column, r.requests) for r in results] == [
        (column, b) for column in ("KV reuse", "Prompt lookup", "Lookahead") for b in (1, 2, 5)
    ]
    for result in results:
        assert result.equal == f"{result.requests} of {result.requests}"
        assert result.predicted > 0
        assert result.rows >= 1
        if result.column == "KV reuse":
            assert (result.speedup, result.predicted_speedup, result.rows) == (1.0, 1.0, 1.0)


@pytest.mark.thorough
@pytest.mark.model
def test_requests_in_lockstep_write_what_they_do_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trained draft, which reads hidden states, and guesses of other lengths each."""
    monkeypatch.setattr(measure_load, "REQUESTS", (3,))
    monkeypatch.setattr(measure_load, "LOAD_WIDTHS", (1, 4))
    monkeypatch.setattr(measure_load, "LOAD_ROUNDS", 1)
    monkeypatch.setattr(models, "keep_load", lambda *_: None)
    given = replace(plan("speculative", tokens=24), targets=(ModelSpec(),))
    plain, speculative = load(given, LoadedModels(), lambda _: None)
    assert plain.equal == speculative.equal == "3 of 3"
    assert plain.throughput


@pytest.mark.parametrize(
    ("column", "said"),
    [("@http://127.0.0.1:9", "runs on another machine"), ("lookup@torch", "its own model")],
)
def test_load_is_of_columns_that_run_here_on_one_model(column: str, said: str) -> None:
    with pytest.raises(DerbyError, match=said):
        load(plan(column), LoadedModels(), lambda _: None)
