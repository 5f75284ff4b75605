"""Predictions from costs and acceptance, and the settings that tune names."""

import pytest
from lib import PROMPT, Script, naive, run, without_template

from backend.bench.prompts import PROMPTS
from backend.bench.summary import winner
from backend.bench.tune import predict, tune
from backend.costs import PassCosts
from backend.engines.fake import FakeEngine
from backend.errors import DerbyError
from backend.racing.models import LoadedModels
from backend.results.score import Score
from backend.text import ByteTokenizer
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


@pytest.mark.parametrize("k", range(1, 9))
def test_a_smaller_k_is_predicted_from_a_run_with_a_larger_one(k: int) -> None:
    """Guesses right for four tokens and then wrong: K above 4 buys nothing and costs rows."""
    per_forward, speedup = predict([scripted(8, 4)], k, CURVE)
    right = 1 + min(k, 4)
    assert per_forward == pytest.approx(right, rel=0.05)
    assert speedup == pytest.approx(right * CURVE.one_row / CURVE(1 + k), rel=0.05)


def test_a_prediction_for_k_is_what_a_run_with_k_finds() -> None:
    far = scripted(8, 4)
    for k in (1, 2, 3, 4):
        near = scripted(k, 4).tokens_per_forward
        assert predict([far], k, CURVE)[0] == pytest.approx(near, rel=0.06)


def test_calls_of_the_draft_are_paid_for() -> None:
    free, dear = (predict([scripted(8, 4, call=call)], 4, CURVE)[1] for call in (0.0, 2.0))
    assert dear == pytest.approx(free * CURVE(5) / (CURVE(5) + 4 * 2.0), rel=0.05)


def test_a_column_that_guessed_nothing_is_predicted_to_be_plain() -> None:
    assert predict([scripted(0, 0)], 4, CURVE) == (pytest.approx(1.0), pytest.approx(1.0))


def test_tuning_measures_every_family_and_names_none_that_is_not_shown_to_be_faster() -> None:
    found = tune(ModelSpec("fake-loop", "fake"), PROMPTS[:2], 200, LoadedModels(), lambda _: None)
    names = [row.setting for row in found.rows]
    assert len(set(names)) == len(names)
    assert {
        "lookup:branches=1,k=1",
        "lookup:branches=1,k=16",
        "speculative",
        "lookahead",
        "lookup",
    } <= set(names)
    assert not any("trained" in name for name in names), "the fake has no trained draft"
    assert found.best == "kv", "two prompts show of no setting that it is faster"
    far = found.rows[names.index("lookup:branches=1,k=16")]
    assert far.tokens_per_forward > 1.5, "this model repeats itself"
    assert far.measured
    assert [row for row in found.rows if row.measured is None], "not every K is run"
    assert 0 not in [row.measured for row in found.rows], "what was not run was measured as 0"


def test_a_model_without_a_chat_template_is_tuned_on_raw_prompts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every family was refused, and the best of none was a traceback (`max()` of nothing)."""
    monkeypatch.setattr(ByteTokenizer, "encode", without_template)
    said: list[str] = []
    found = tune(ModelSpec("fake-loop", "fake"), PROMPTS[:1], 40, LoadedModels(), said.append)
    assert found.rows
    assert "The model has no chat template, so prompts are sent as they are." in said


def test_where_no_family_runs_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise DerbyError("No.")

    monkeypatch.setattr("backend.bench.tune._Runs._rows", refuse)
    with pytest.raises(DerbyError, match="No setting could be run on fake-loop"):
        tune(ModelSpec("fake-loop", "fake"), PROMPTS[:1], 40, LoadedModels(), lambda _: None)


def test_chance_wins_nothing() -> None:
    """A column that had declined, and did what KV reuse does, was recommended for a speed-up of
    2.76 in two short runs.
    """
    noise, slower = ("lookahead", 2.76, (0.3, 25.0)), ("lookup", 0.8, (0.7, 0.9))
    few, unrun = ("speculative", 3.0, None), ("lookup:k=3", None, None)
    assert winner([noise, slower, few, unrun]) == ""
    assert winner([noise, ("lookup:k=4", 1.2, (1.1, 1.3)), few, ("a", 1.1, (1.05, 1.2))]) == (
        "lookup:k=4"
    )
