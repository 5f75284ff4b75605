"""What tune predicts of a smaller K is what a run with it finds; it names no setting that is not
shown to be faster.
"""

import pytest
from loop_runs import PROMPT, Script, naive, run

from backend.bench.plan import Plan
from backend.bench.prompts import PROMPTS
from backend.bench.tune import _candidates, contenders, predict, tune
from backend.costs import PassCosts
from backend.engines.fake import FakeEngine
from backend.errors import DerbyError
from backend.racing.models import LoadedModels
from backend.results.scoreboard import Score
from backend.strategies.column import default_column
from backend.types import ModelSpec, Request

CURVE = PassCosts((1, 2, 4, 8, 16), (10.0, 11.0, 12.0, 14.0, 22.0))


def scripted(k: int, wrong: int, costs: PassCosts = CURVE, call: float = 0.0) -> Score:
    """A run whose every round of k guesses goes wrong at the same place."""
    engine = FakeEngine()
    request = Request("x", max_new_tokens=81)
    drafter = Script(naive(engine, PROMPT, request), len(PROMPT), k, wrong)
    score = run(engine, request, drafter).score
    score.costs, score.draft_cost, score.calls = costs, call, score.drafted * (call > 0)
    return score


def plan(prompts: int, tokens: int, name: str = "fake-loop", engine: str = "fake") -> Plan:
    return Plan(PROMPTS[:prompts], (), Request("-", tokens), ModelSpec(name, engine))


def test_a_prediction_for_k_is_what_a_run_with_k_finds() -> None:
    """Guesses right for four tokens and then wrong: K above 4 buys nothing and costs rows."""
    for k in range(1, 9):
        speedup, itself = predict([scripted(8, 4)], CURVE, k), predict([scripted(k, 4)], CURVE)
        assert speedup == pytest.approx((1 + min(k, 4)) * CURVE.one_row / CURVE(1 + k), rel=0.05)
        assert speedup == pytest.approx(itself, rel=0.05)


def test_calls_of_the_draft_are_paid_for() -> None:
    free, dear = (predict([scripted(8, 4, call=call)], CURVE, 4) for call in (0.0, 2.0))
    assert dear == pytest.approx(free * CURVE(5) / (CURVE(5) + 4 * 2.0), rel=0.05)


def test_a_column_that_guessed_nothing_is_predicted_to_be_plain() -> None:
    assert predict([scripted(0, 0)], CURVE, 4) == pytest.approx(1.0)


def test_tuning_measures_every_family_and_names_none_that_is_not_shown_to_be_faster() -> None:
    tuning = tune(plan(2, 200), LoadedModels(), lambda _: None)
    rows = {row.column: row for row in tuning.results}
    assert {"lookup:k=16", "speculative", "lookahead", "lookup"} <= set(rows)
    assert len(rows) == len(tuning.results)
    assert not any("trained" in name for name in rows), "the fake has no trained draft"
    assert tuning.baseline == "kv"
    assert tuning.best is None, "two prompts show of no setting that it is faster"
    assert rows["lookup:k=16"].prompts == 2
    assert tuning.predicted["lookup:k=16"] > 1.5, "this model repeats itself"
    assert set(tuning.predicted) <= set(rows), "what is predicted to be best is run"
    assert "speculative:draft=int4,k=3" not in rows, "not every k is run"


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
