"""What tune predicts of a smaller K is what a run with it finds; it names no setting that is not
shown to be faster.
"""

import pytest
from loop_runs import PROMPT, Script, naive, run, without_template

from backend.bench.prompts import PROMPTS
from backend.bench.runner import RAW
from backend.bench.summary import winner
from backend.bench.tune import predict, tune
from backend.costs import PassCosts
from backend.engines.fake import FakeEngine
from backend.errors import DerbyError
from backend.racing.models import LoadedModels
from backend.results.scoreboard import Score
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


def test_a_prediction_for_k_is_what_a_run_with_k_finds() -> None:
    """Guesses right for four tokens and then wrong: K above 4 buys nothing and costs rows."""
    far = scripted(8, 4)
    for k in range(1, 9):
        per_forward, speedup = predict([far], k, CURVE)
        right = 1 + min(k, 4)
        run_ = scripted(k, 4)
        assert per_forward == pytest.approx((run_.length - 1) / (run_.steps - 1), rel=0.06)
        assert per_forward == pytest.approx(right, rel=0.05)
        assert speedup == pytest.approx(right * CURVE.one_row / CURVE(1 + k), rel=0.05)


def test_calls_of_the_draft_are_paid_for() -> None:
    free, dear = (predict([scripted(8, 4, call=call)], 4, CURVE)[1] for call in (0.0, 2.0))
    assert dear == pytest.approx(free * CURVE(5) / (CURVE(5) + 4 * 2.0), rel=0.05)


def test_a_column_that_guessed_nothing_is_predicted_to_be_plain() -> None:
    assert predict([scripted(0, 0)], 4, CURVE) == (pytest.approx(1.0), pytest.approx(1.0))


def test_tuning_measures_every_family_and_names_none_that_is_not_shown_to_be_faster() -> None:
    tuning = tune(ModelSpec("fake-loop", "fake"), PROMPTS[:2], 200, LoadedModels(), lambda _: None)
    names = [row.setting for row in tuning.rows]
    families = {"lookup:k=1", "lookup:k=16", "speculative", "lookahead"}
    assert len(set(names)) == len(names)
    assert families | {"lookup"} <= set(names)
    assert not any("trained" in name for name in names), "the fake has no trained draft"
    assert tuning.best == "kv", "two prompts show of no setting that it is faster"
    far = tuning.rows[names.index("lookup:k=16")]
    assert far.tokens_per_pass > 1.5, "this model repeats itself"
    assert far.measured
    assert [row for row in tuning.rows if row.measured is None], "not every K is run"


def test_where_no_family_runs_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a chat template prompts are sent raw; where nothing runs, that is one sentence."""
    target, lines = ModelSpec("fake-loop", "fake"), list[str]()
    monkeypatch.setattr(ByteTokenizer, "encode", without_template)
    assert tune(target, PROMPTS[:1], 24, LoadedModels(), lines.append).rows
    assert RAW in lines

    def refuse(*_: object) -> None:
        raise DerbyError("No.")

    monkeypatch.setattr("backend.bench.tune.raced", refuse)
    with pytest.raises(DerbyError, match="No setting could be run"):
        tune(target, PROMPTS[:1], 24, LoadedModels(), lambda _: None)


def test_chance_wins_nothing() -> None:
    noise, slower = ("lookahead", 2.76, (0.3, 25.0)), ("lookup", 0.8, (0.7, 0.9))
    few, unrun = ("speculative", 3.0, None), ("lookup:k=3", None, None)
    assert winner([noise, slower, few, unrun]) == ""
    faster, close = ("lookup:k=4", 1.2, (1.1, 1.3)), ("stateless", 1.1, (1.05, 1.2))
    assert winner([noise, faster, few, close]) == "lookup:k=4"
