"""Every experiment declares itself, and those that need no weights measure the fake engine."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from backend.bench.experiment import Plan
from backend.bench.prompts import PROMPTS, Prompt
from backend.bench.registry import EXPERIMENTS, experiment_named
from backend.bench.solo import ColumnResult, measured, numbered, results
from backend.costs import measure_load
from backend.errors import DerbyError
from backend.events import Finished, Step
from backend.racing import models
from backend.racing.models import LoadedModels
from backend.results.figures import figure
from backend.results.metrics import Score
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request


def plan(*columns: str, tokens: int = 40) -> Plan:
    return Plan(
        PROMPTS[:3],
        tuple(map(parse_column, columns)),
        Request("-", tokens),
        ModelSpec("fake-loop", "fake"),
        LoadedModels(),
        lambda _: None,
        rounds=2,
    )


def printed(name: str, given: Plan, results: list) -> str:
    console = Console(width=200, record=True, file=StringIO())
    console.print(EXPERIMENTS[name].table(given, results))
    return console.export_text()


def test_every_experiment_is_found_by_its_name_and_says_what_it_measures() -> None:
    for name, experiment in EXPERIMENTS.items():
        assert experiment_named(name) is experiment
        assert experiment.name == name
        assert experiment.help
    with pytest.raises(DerbyError, match=r"no experiment 'pears'.*solo, load"):
        experiment_named("pears")


def compared(column: str, texts: str, pairs: list[tuple[Score, Score]]) -> ColumnResult:
    """The results of runs beside KV reuse's on the same prompts, each a letter."""
    numbers = numbered([Prompt("any", text) for text in texts])
    (result,) = results(
        [
            measured(parse_column(column), "any", number, base, score)
            for number, (base, score) in zip(numbers, pairs, strict=True)
        ]
    )
    return result


def test_solo_compares_every_column_with_kv_reuse_in_all_and_by_category() -> None:
    given = plan("stateless", "lookup", "kv")
    results = EXPERIMENTS["solo"].run(given)
    columns = ["KV reuse", "Stateless", "Prompt lookup"]
    categories = ["all", *(prompt.category for prompt in given.prompts)]
    assert [(r.category, r.column) for r in results] == [
        (category, column) for category in categories for column in columns
    ]
    for result in results:
        assert result.prompts == result.equal == (3 if result.category == "all" else 1)
        assert result.tpot > 0
        assert result.spread[0] <= result.speedup <= result.spread[1]
        assert result.interval is None, "three prompts are too few"
        if result.column == "KV reuse":
            assert (result.speedup, result.end_to_end, result.acceptance) == (1.0, 1.0, None)
            assert result.tokens_per_forward == 1.0
    text = printed("solo", given, results)
    assert str(given.target) in text
    assert "tokens per forward" in text
    assert "clock" not in text, "all have their own"


def test_enough_prompts_give_an_interval() -> None:
    base = clocked(0, [1.0] * 9)
    pairs = [(base, clocked(1, [1.0] + [1 / speed] * 8)) for speed in (1.2, 1.3, 1.4, 1.5)]
    result = compared("lookup", "abcd", pairs)
    assert result.speedup == pytest.approx(1.35)
    assert result.interval is not None
    assert 1 < result.interval[0] < 1.35 < result.interval[1] < 1.8
    once = compared("lookup", "aaaa", pairs)
    assert (once.prompts, once.interval) == (1, None), "repeats of a prompt are no other prompts"


def test_load_runs_every_column_at_every_number_of_requests(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path))
    monkeypatch.setattr(measure_load, "REQUESTS", (1, 2, 5))
    given = plan("lookup", "lookahead", tokens=24)
    results = EXPERIMENTS["load"].run(given)
    assert [(r.column, r.requests) for r in results] == [
        (column, b) for column in ("KV reuse", "Prompt lookup", "Lookahead") for b in (1, 2, 5)
    ]
    for result in results:
        assert result.equal == f"{result.requests} of {result.requests}"
        assert result.predicted > 0
        assert result.rows >= 1
        if result.column == "KV reuse":
            assert (result.speedup, result.predicted_speedup, result.rows) == (1.0, 1.0, 1.0)
    assert "predicted speedup" in printed("load", given, results)


@pytest.mark.model
def test_requests_in_lockstep_write_what_they_do_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trained draft, which reads hidden states, and guesses of other lengths each."""
    monkeypatch.setattr(measure_load, "REQUESTS", (3,))
    monkeypatch.setattr(measure_load, "LOAD_WIDTHS", (1, 4))
    monkeypatch.setattr(measure_load, "LOAD_ROUNDS", 1)
    monkeypatch.setattr(models, "keep_load", lambda *_: None)
    given = replace(plan("speculative", tokens=24), target=ModelSpec())
    plain, speculative = EXPERIMENTS["load"].run(given)
    assert plain.equal == speculative.equal == "3 of 3"
    assert plain.throughput


@pytest.mark.parametrize(
    ("column", "said"),
    [("@http://127.0.0.1:9", "runs elsewhere"), ("lookup@torch", "a model of its own")],
)
def test_load_is_of_columns_that_run_here_on_one_model(column: str, said: str) -> None:
    with pytest.raises(DerbyError, match=said):
        EXPERIMENTS["load"].run(plan(column))


def clocked(column: int, seconds: list[float]) -> Score:
    """A finished column that wrote one token a step, which took so long each."""
    score = Score()
    for number, each in enumerate(seconds):
        parts = {"total": each, "draft": 0.0, "mask": 0.0, "forward": each, "rest": 0.0}
        score.add(Step(column, [number], ["sampled"], [1.0], [], 1, 0, 0, parts))
    score.add(Finished(column, "token limit", []))
    return score


def test_a_column_that_stops_early_is_compared_over_the_tokens_that_it_wrote() -> None:
    """Stateless stops after 32 tokens while KV reuse goes on, and without a cache time per token
    grows with the length: the ratio of both whole answers' times said nothing.
    """
    base = clocked(0, [1.0, *range(1, 40)])
    score = clocked(1, [2.0, *(2.0 * t for t in range(1, 9))])
    result = compared("stateless", "a", [(base, score)])
    assert result.speedup == result.end_to_end == 0.5
    assert result.spread == (0.5, 0.5)


def test_a_table_heads_and_writes_figures_as_the_rest_of_the_program_does() -> None:
    given = plan("lookup")
    text = printed("solo", given, EXPERIMENTS["solo"].run(given))
    for name in ("ttft", "tpot", "speedup", "tokens_per_forward", "accepted", "mask_wait"):
        assert figure(name).heading.split()[0] in text
    assert "acceptance" not in text
