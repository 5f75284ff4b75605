"""Which lookahead runs where, what its decision says, and how its own steps correct that."""

from collections.abc import Sequence

import pytest
from lib import PROMPT, run

from backend.costs.pass_costs import CONTEXT, UNKNOWN_COSTS, PassCosts
from backend.decoding.drafter import Decision
from backend.drafters.lookahead import Lookahead
from backend.drafters.lookahead_plan import (
    LADDER,
    MARGIN,
    MEASURED,
    TRIAL,
    USUAL,
    YIELDS,
    Auto,
    PlannedLookahead,
    Sizes,
    choose_sizes,
    plan_lookahead,
    predicted,
)
from backend.engines.fake import FakeEngine
from backend.events import Decided
from backend.types import Outcome, Proposal, Request

CURVE = PassCosts((1, 2, 4, 8, 16), (10.0, 11.0, 12.0, 14.0, 22.0))
FLAT = PassCosts((1, 64), (10.0, 10.0))
STEEP = PassCosts((1, 16), (10.0, 40.0))
#: Where nothing reads the logits that a step hands back.
NO_LOGITS: object = ()


def made(setting: Sizes) -> Lookahead:
    return Lookahead(setting.window, setting.level, setting.guesses, seeded=True, seed=1)


def steps(
    lookahead: PlannedLookahead,
    blocks: Sequence[Sequence[int]],
    *,
    length: int = CONTEXT,
    forced: int = 0,
) -> list[Proposal]:
    """Rounds that committed these tokens, with `forced` tokens of a grammar after each."""
    proposals: list[Proposal] = []
    context = list(range(length))
    for block in blocks:
        proposal = lookahead.propose(context[-length:], 50)
        proposals.append(proposal)
        feedback = FakeEngine().open().forward([1], [-1], [0] * proposal.feedback)
        lookahead.observe(Outcome(tuple(block), len(block) - 1, proposal, feedback))
        context += block
        if forced:
            chain = Proposal().behind(range(forced))
            tokens = (*range(forced), 7)
            lookahead.observe(Outcome(tokens, forced, chain, NO_LOGITS))  # type: ignore[arg-type]
            context += tokens
    return proposals


def test_the_best_setting_is_the_one_that_costs_promise_most_of() -> None:
    for costs in (CURVE, FLAT, STEEP, PassCosts((1, 16), (10.0, 14.0), 3.0)):
        setting, decision = choose_sizes(costs, "best", MEASURED)
        assert predicted(setting, costs) == max(predicted(other, costs) for other in LADDER)
        assert decision.settings == setting.values
        assert decision.predicted == predicted(setting, costs)
        assert f"a pass over {setting.rows} rows takes" in decision.why
    assert choose_sizes(FLAT, "best", MEASURED)[0] == max(LADDER, key=YIELDS.__getitem__)


@pytest.mark.parametrize("costs", [CURVE, FLAT, STEEP])
def test_declining_is_a_choice_and_the_default_says_what_it_would_have_come_to(
    costs: PassCosts,
) -> None:
    """Lookahead's column used to decline and then showed plain decoding under its name."""
    _, best = choose_sizes(costs, "best", MEASURED)
    _, declining = choose_sizes(costs, "decline", MEASURED)
    largest, decision = choose_sizes(costs, "largest", MEASURED)
    assert best.settings
    assert (largest, decision.settings) == (LADDER[-1], LADDER[-1].values)
    if best.predicted > MARGIN:
        assert (declining.settings, best.declined) == (best.settings, ())
    else:
        assert (declining.settings, len(declining.declined)) == ({}, 1)
        (sentence,) = best.declined
        assert sentence.startswith(f"at the start, the predicted speed-up was {best.predicted:.2f}")


def test_a_declined_lookahead_proposes_nothing() -> None:
    lookahead = plan_lookahead(STEEP, "decline", MEASURED, made)
    assert steps(lookahead, [[1]] * 3) == [Proposal()] * 3
    lookahead.conclude()
    assert "lookahead would not be faster: a pass over" in lookahead.decision.declined[0]


@pytest.mark.parametrize("auto", ["best", "decline", "largest"])
def test_of_another_model_the_yield_is_said_to_be_assumed(auto: Auto) -> None:
    """The yields of the built-in model were promised of every model."""
    ours, known = choose_sizes(FLAT, auto, MEASURED)
    theirs, assumed = choose_sizes(FLAT, auto, "another")
    assert (ours, known.settings) == (theirs, assumed.settings)
    assert (known.predicted > 1, assumed.predicted) == (True, 0.0)
    assert "assumed" not in known.why
    assert f"assumed to yield 1.8 tokens, as on {MEASURED}" in assumed.why
    lookahead = plan_lookahead(FLAT, auto, "another", made)
    steps(lookahead, [[1, 2], [3]] * (TRIAL // 2))
    assert lookahead.decision.predicted == pytest.approx(1.5), "its own steps tell"
    assert (
        "wrote 1.50 tokens each; such a pass should take 1.00\u00d7 as long"
        in lookahead.decision.why
    )


def test_where_costs_are_unknown_nothing_is_promised() -> None:
    for auto, expected in (("best", USUAL), ("decline", USUAL), ("largest", LADDER[-1])):
        setting, decision = choose_sizes(UNKNOWN_COSTS, auto, MEASURED)
        assert setting == expected
        assert (decision.settings, decision.predicted) == (setting.values, 0.0)
    lookahead = plan_lookahead(UNKNOWN_COSTS, "decline", MEASURED, made)
    assert all(proposal.tokens for proposal in steps(lookahead, [[1]] * 3 * TRIAL))
    lookahead.conclude()
    assert lookahead.decision.predicted == 0.0
    assert "the time of a pass is unknown here" in lookahead.decision.why


def trial(costs: PassCosts, auto: Auto = "decline") -> PlannedLookahead:
    """A small setting that runs whatever it promises."""
    setting = Sizes(5, 3, 5)
    return PlannedLookahead(
        made(setting), setting, Decision(setting.values), costs, gives_up=auto == "decline"
    )


def test_lookahead_that_does_not_pay_ends_and_says_so() -> None:
    """Each step yields a single token while its rows cost more than a plain one."""
    lookahead = trial(CURVE)
    proposals = steps(lookahead, [[token] for token in range(100, 100 + 3 * TRIAL)])
    assert all(proposal.tokens for proposal in proposals[:TRIAL])
    assert not any(proposal.tokens for proposal in proposals[TRIAL:])
    assert lookahead.decision.settings == {}
    (sentence,) = lookahead.decision.declined
    assert (
        f"was stopped: {TRIAL} passes wrote 1.00 tokens each; such a pass should take" in sentence
    )
    lookahead.conclude()
    assert lookahead.decision.declined == (sentence,)


def test_by_default_it_goes_on_and_says_that_it_would_have_ended() -> None:
    lookahead = trial(CURVE, "best")
    assert all(proposal.tokens for proposal in steps(lookahead, [[1]] * 3 * TRIAL))
    lookahead.conclude()
    decision = lookahead.decision
    assert decision.settings == Sizes(5, 3, 5).values
    assert 0 < decision.predicted < 1
    assert decision.declined == (f"auto=decline would stop guessing after {TRIAL} passes",)


def test_a_change_of_width_and_the_context_are_paid_for() -> None:
    """A trial over rows that cost nothing went on for ever, although its width changed in every
    step, at a plain step's cost each, or although rows behind a long context were dear.
    """
    blocks = [[1, 2], [3]] * TRIAL
    free = trial(FLAT)
    steps(free, blocks)
    assert free.decision.settings
    # Forced tokens between the rounds change the width each time.
    changing = trial(PassCosts(FLAT.widths, FLAT.seconds, width_change=6.0))
    proposals = steps(changing, blocks, forced=2)
    assert not any(proposal.tokens for proposal in proposals[TRIAL:])
    sloped = PassCosts(FLAT.widths, FLAT.seconds, 0.0, (0.0, 1e-3))
    for length, goes_on in ((CONTEXT, True), (CONTEXT + 2000, False)):
        lookahead = trial(sloped)
        proposals = steps(lookahead, blocks, length=length)
        assert any(proposal.tokens for proposal in proposals[TRIAL:]) == goes_on


def test_forced_tokens_are_none_of_its_merits() -> None:
    """In a grammar column every forced run counted as tokens that lookahead had earned."""
    lookahead = trial(CURVE)
    proposals = steps(lookahead, [[1]] * 3 * TRIAL, forced=9)
    assert not any(proposal.tokens for proposal in proposals[TRIAL:])
    assert "wrote 1.00 tokens each" in lookahead.decision.declined[0]


def test_the_column_tells_of_its_decision_as_it_changes() -> None:
    engine = FakeEngine(period=1, sharpness=8.0)
    lookahead = plan_lookahead(FLAT, "best", "another", made)
    events = run(engine, Request("x", max_new_tokens=200), lookahead, PROMPT).events
    told = [event for event in events if isinstance(event, Decided)]
    assert [event.settings for event in told] == [LADDER[-1].values] * len(told)
    assert "assumed" in told[0].why
    assert len(told) in (2, 3), "at the start, after the trial, and at the end"
    assert told[-1].predicted > 1.5
