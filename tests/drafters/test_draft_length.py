"""How much to draft: the best round under known costs, and beliefs that follow what happens."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lib import PROMPT, Noisy, drafting, naive, run

from backend.costs.learnt import LearntCosts
from backend.costs.pass_costs import CONTEXT, UNKNOWN_COSTS, PassCosts
from backend.decoding.drafter import UNDECIDED
from backend.decoding.sampling import Pair
from backend.drafters.acceptance import (
    MEMORY,
    AcceptanceEstimates,
    Calibration,
    Experience,
)
from backend.drafters.draft_length import (
    PATIENCE,
    PROBE_EVERY,
    PROBE_SHARE,
    AdaptiveDraftLength,
    DraftLength,
)
from backend.drafters.guesses import proposal_of
from backend.drafters.hybrid import Hybrid
from backend.drafters.network_drafter import NetworkDrafter
from backend.drafters.prompt_lookup import PromptLookup
from backend.engines.fake import FakeEngine
from backend.events import Decided
from backend.types import Capabilities, Outcome, Proposal, Request

CURVE = PassCosts((1, 2, 4, 8, 16), (10.0, 11.0, 12.0, 14.0, 22.0), 0.0)
NO_LOGITS: object = ()


def outcome(drafted: int, accepted: int, calls: int = 0) -> Outcome:
    proposal = Proposal.chain(range(drafted), calls=calls)
    tokens = (*range(accepted), 99)
    return Outcome(tokens, accepted, proposal, NO_LOGITS)  # type: ignore[arg-type]


@given(st.lists(st.floats(0, 1), max_size=12))
def test_no_other_number_of_tokens_promises_more(chances: list[float]) -> None:
    path_probabilities = list(accumulate(chances, mul))
    draft_length = AdaptiveDraftLength(CURVE, 0.0, 16)

    def gain(drafted: int) -> float:
        """At the outset a token costs what a plain step does."""
        return CURVE.one_row * sum(path_probabilities[:drafted]) - CURVE(1 + drafted)

    chosen = draft_length.verify_count(path_probabilities)
    assert gain(chosen) == max(gain(n) for n in range(len(path_probabilities) + 1))


def test_cheap_tokens_make_it_choosy() -> None:
    """What a token costs lately is what another one must beat."""
    draft_length = AdaptiveDraftLength(CURVE, 0.0, 16)
    before = draft_length.verify_count([0.25, 0.2, 0.15])
    for _ in range(100):
        draft_length.learn(outcome(7, 7))
    assert before > 0
    assert draft_length.verify_count([0.25, 0.2, 0.15]) == 0


def test_a_dear_draft_is_asked_for_less() -> None:
    def depth(call: float) -> int:
        draft_length = AdaptiveDraftLength(CURVE, call, 16)
        return next(n for n in range(17) if not draft_length.extends(n, 0.8**n))

    assert depth(0.1) > depth(2.0) > depth(9.0) >= 0
    assert not AdaptiveDraftLength(CURVE, 30.0, 16).extends(0, 1.0)


def test_a_change_of_width_is_paid_for() -> None:
    """Where another number of rows costs time, a small gain is not worth it."""
    steep = PassCosts(CURVE.widths, CURVE.seconds, width_change=5.0)
    assert AdaptiveDraftLength(CURVE, 0.0, 16).verify_count([0.3]) == 1
    draft_length = AdaptiveDraftLength(steep, 0.0, 16)
    assert draft_length.verify_count([0.3]) == 0
    draft_length.learn(outcome(1, 1))
    assert draft_length.verify_count([0.9]) == 1, "now staying is what costs nothing"


def test_what_a_token_cost_counts_a_change_of_width_once() -> None:
    """It was counted twice, as in planning: tokens seemed dear, and too much was drafted."""
    steep = PassCosts(CURVE.widths, CURVE.seconds, width_change=5.0)
    draft_length = AdaptiveDraftLength(steep, 0.0, 16)
    for turn in range(400):
        draft_length.learn(outcome(turn % 2, 0))  # one row, two rows, and so on: one token each
    assert draft_length._seconds_per_token == pytest.approx((10.0 + 11.0) / 2 + 5.0, rel=0.02)


@given(st.lists(st.booleans(), max_size=400), st.floats(0, 1))
def test_beliefs_move_towards_what_happens(found: list[bool], prior: float) -> None:
    chances = AcceptanceEstimates([prior], weight=8.0, memory=1000)
    for right in found:
        chances.learn(0, right=right)
    expected = (8 * prior + sum(found)) / (8 + len(found))
    assert chances[0] == pytest.approx(expected)
    assert 0 <= chances[0] <= 1


@pytest.mark.parametrize("before", [100, 5000])
def test_what_was_long_ago_is_forgotten(before: int) -> None:
    """ "Lately" was ever since the text began: behind a long stretch in which the draft was never
    right, one in which it always was went unnoticed for as long again.
    """
    chances = AcceptanceEstimates([0.5])
    for _ in range(before):
        chances.learn(0, right=False)
    for _ in range(2 * MEMORY):
        chances.learn(0, right=True)
    assert chances[0] > 0.8


def asked_of(
    call: float, seconds: float, rounds: int = 400, known: Calibration | None = None
) -> list[bool]:
    """In which rounds a draft is asked that is never right, and takes so many seconds each time,
    of which a call takes `call`. A plain pass takes ten. `known`: what is known of it before.
    """
    draft_length, calibration = AdaptiveDraftLength(CURVE, call, 8), known or Calibration()
    asked: list[bool] = []
    for _ in range(rounds):
        asked.append(calibration.begin(draft_length))
        if asked[-1]:
            calibration.add(Pair(5, 0.1, 6), second=False)
            calibration.learn(outcome(1, 0))
        made = outcome(1, 0, calls=1) if asked[-1] else outcome(0, 0)
        draft_length.learn(replace(made, draft_seconds=seconds if asked[-1] else 0.0))
    return asked


def test_a_draft_that_is_never_right_is_asked_once_in_a_while_only() -> None:
    asked = asked_of(0.4, 0.4)
    assert all(asked[:3])
    assert 340 / PROBE_EVERY - 2 <= sum(asked[60:]) <= 340 / PROBE_EVERY + 2


def test_a_dear_draft_that_is_never_right_takes_a_hundredth_of_the_time() -> None:
    """One round in sixteen asked it, whatever it took: a tenth of 55 tokens."""
    rounds = 4000
    asked = asked_of(4.0, 12.0, rounds)
    lost = sum(asked) * (12.0 + CURVE(2) - CURVE(1))
    assert sum(asked[400:]) > 0
    assert lost <= 2 * PROBE_SHARE * rounds * CURVE.one_row
    assert not any(asked_of(6.0, 6.0, 55))


def test_a_draft_that_did_not_pay_is_not_tried_at_once_in_every_text() -> None:
    """One that was never right was asked in the first rounds of each text, most of which a short
    answer has no more of. Some texts later it is tried again: this one may be easier.
    """
    experience = Experience()
    first = asked_of(3.0, 3.0, 55, experience.begin(""))
    second = asked_of(3.0, 3.0, PROBE_EVERY - 1, experience.begin(""))
    assert sum(first[: PROBE_EVERY - 1]) > 1
    assert sum(second) == 0
    told = [experience.begin("").first_token_acceptance for _ in range(8)]
    assert told == sorted(told)
    assert asked_of(3.0, 3.0, 1, experience.begin("")) == [True]


def chances(calibration: Calibration, *gaps: float) -> list[float]:
    """What it believes of guesses with such gaps, best and second best, each as a round's first."""
    found: list[float] = []
    for gap in gaps:
        calibration.begin(DraftLength(1))
        calibration.add(Pair(1, gap, 2), second=True)
        found += [guess.path_probability for guess in calibration.guesses]
    return found


def test_only_what_was_judged_is_learnt() -> None:
    """The first guess right, the second wrong but its runner-up right, the third never seen."""
    calibration = Calibration()
    gaps = (0.1, 7.0, 2.5)
    before = chances(calibration, *gaps)
    calibration.begin(DraftLength(3))
    for token, gap in zip((0, 9, 2), gaps, strict=True):
        calibration.add(Pair(token, gap, 99), second=True)
    calibration.learn(outcome(3, 1))
    moved = [(b > a) - (b < a) for a, b in zip(before, chances(calibration, *gaps), strict=True)]
    # A round's guesses in order: the runner-up, then the best.
    assert moved == [-1, 1, 1, -1, 0, 0]


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 9), st.integers(4, 6)), max_size=6))
def test_what_is_verified_is_a_tree_of_the_best_guesses(
    found: list[tuple[int, float, int]],
) -> None:
    calibration, draft_length = Calibration(), AdaptiveDraftLength(CURVE, 0.1, 16)
    calibration.begin(draft_length)
    for token, gap, second in found:
        calibration.add(Pair(token, gap, second), second=True)
    proposal = proposal_of(calibration.guesses, draft_length, len(found))
    assert proposal.calls == len(found)
    paths: list[tuple[int, ...]] = []
    for row, (token, parent) in enumerate(zip(proposal.tokens, proposal.parents, strict=True)):
        assert -1 <= parent < row
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    known = {guess.path: guess.path_probability for guess in calibration.guesses}
    assert len(set(paths)) == len(paths)
    assert set(paths) <= set(known)
    left = [path_probability for path, path_probability in known.items() if path not in paths]
    assert max(left, default=0.0) <= min((known[path] for path in paths), default=1.0)
    chosen = proposal_of(calibration.guesses, DraftLength(3))
    assert len(chosen.tokens) == len(known)


def rounds(draft_length: DraftLength, outcomes: Sequence[Outcome]) -> None:
    for found in outcomes:
        draft_length.begin(128)
        draft_length.learn(found)


def test_what_auto_drafted_is_summed_up() -> None:
    draft_length = AdaptiveDraftLength(CURVE, 0.5, 8)
    assert draft_length.summary() is UNDECIDED
    draft_length.learn(outcome(0, 0))  # the step that reads the prompt
    assert draft_length.summary() is UNDECIDED
    rounds(draft_length, [outcome(4, 2, 4), outcome(1, 1, 1), outcome(0, 0), outcome(4, 4, 4)])
    decision = draft_length.summary()
    assert decision.settings == {"k": 3}
    assert decision.why == "auto guessed 3 tokens ahead on average, in 3 of 4 passes"
    assert decision.declined == ()
    # Four passes over 5, 2, 1 and 5 rows, of which all but the first changed the width.
    spent = 2 * CURVE(5) + CURVE(2) + CURVE(1) + 9 * 0.5
    assert decision.predicted == pytest.approx((3 + 2 + 1 + 5) * CURVE(1) / spent)


def test_forced_tokens_are_not_what_auto_drafted() -> None:
    """They were counted among the drafted ones, so that K came out too high under a grammar."""
    draft_length = AdaptiveDraftLength(CURVE, 0.0, 8)
    forced = Proposal().behind(range(30))
    for _ in range(5):
        rounds(draft_length, [outcome(2, 1)])
        draft_length.learn(Outcome((*range(30), 99), 30, forced, NO_LOGITS))  # type: ignore[arg-type]
    assert draft_length.summary().settings == {"k": 2}
    assert "in 5 of 5 passes" in draft_length.summary().why


def test_a_tree_counts_by_its_longest_chain() -> None:
    """Two branches of a lookup are drafted at once, but K is how far a chain may go."""
    draft_length = AdaptiveDraftLength(CURVE, 0.0, 8)
    tree = Proposal((1, 2, 3, 4, 9, 9), (-1, 0, -1, 2, -1, -1), scratch=2)
    rounds(draft_length, [Outcome((1, 99), 1, tree, NO_LOGITS)])  # type: ignore[arg-type]
    assert draft_length.summary().settings == {"k": 2}


def test_auto_that_never_drafted_says_so_and_a_fixed_length_decides_nothing() -> None:
    draft_length = AdaptiveDraftLength(CURVE, 0.0, 8)
    rounds(draft_length, [outcome(0, 0)] * 9)
    decision = draft_length.summary()
    assert (decision.settings, decision.predicted) == ({}, 1.0)
    assert decision.declined == ("no guess was worth its time",)
    unknown = AdaptiveDraftLength(UNKNOWN_COSTS, 0.0, 8)
    rounds(unknown, [outcome(4, 4)])
    assert (unknown.summary().settings, unknown.summary().predicted) == ({"k": 4}, 0.0)
    fixed = DraftLength(4)
    rounds(fixed, [outcome(4, 4)])
    assert fixed.summary() is UNDECIDED


@pytest.mark.parametrize("k", [1, 4])
def test_every_drafter_sums_up_once_when_the_text_has_ended(k: int) -> None:
    """Of a hybrid, whose two drafters share a draft length, no round counts twice."""
    engine = FakeEngine(period=2, sharpness=4.0)
    request = Request("x", max_new_tokens=60)

    def length() -> DraftLength:
        return AdaptiveDraftLength(CURVE, 0.1, k)

    def model(draft_length: DraftLength) -> NetworkDrafter:
        return drafting(engine, draft_length)

    def hybrid(draft_length: DraftLength) -> Hybrid:
        return Hybrid(PromptLookup(draft_length, 3), model(draft_length), draft_length)

    for make in (model, hybrid, lambda draft_length: PromptLookup(draft_length, 3)):
        found = run(engine, request, make(length()))
        told = [event for event in found.events if isinstance(event, Decided)]
        assert len(told) == 1
        assert isinstance(found.events[-2], Decided)
        guessed = [step for step in found.steps[1:] if step.drafted]
        assert 1 <= told[0].settings["k"] <= k
        assert f"in {len(guessed)} of {len(found.steps) - 1} passes" in told[0].why
        fixed = run(engine, request, make(DraftLength(k)))
        assert not any(isinstance(event, Decided) for event in fixed.events)


def test_a_hybrid_tells_whose_guesses_were_accepted_and_what_asking_took() -> None:
    engine = FakeEngine(period=1, sharpness=8.0)
    draft_length = AdaptiveDraftLength(CURVE, 0.1, 4)
    hybrid = Hybrid(PromptLookup(draft_length, 3), drafting(engine, draft_length), draft_length)
    found = run(engine, Request("x", max_new_tokens=60), hybrid)
    accepted = sum(step.accepted for step in found.steps)
    drafted = sum(step.drafted for step in found.steps)
    said = hybrid.decision.why.partition("accepted guesses: ")[2].partition(";")[0]
    told = [(int(a), int(b)) for a, b in re.findall(r"(\d+) of (\d+)", said)]
    assert tuple(map(sum, zip(*told, strict=True))) == (accepted, drafted)
    cost = (
        r"prompt lookup takes \S+ ms a pass, "
        r"the draft model \S+ ms in \d+ of \d+ passes"
    )
    assert re.search(cost, hybrid.decision.why)


def test_what_a_round_earns_is_what_the_best_number_of_guesses_does() -> None:
    """A guess that does not pay takes nothing from it; calls of the draft do."""
    length = AdaptiveDraftLength(CURVE, 0.1, 4)
    none = length.gain([])
    assert length.gain([0.9]) > none
    assert length.gain([0.9, 0.01]) == length.gain([0.9])
    assert none <= length.gain([0.9], calls=1) < length.gain([0.9])
    assert length.gain([0.9] * 9) == length.gain([0.9] * 4), "at most k"
    assert DraftLength(2).gain([0.5, 0.25, 0.1]) == 0.75


def test_a_token_is_as_dear_as_the_machine_is_slow_now() -> None:
    """A machine that had become slower drafted less: its tokens counted as of the quicker time."""
    costs = LearntCosts(CURVE)
    draft_length = AdaptiveDraftLength(costs, 0.0, 16)
    chances = [0.6, 0.3, 0.12, 0.05]
    before = draft_length.verify_count(chances)
    for rows in (1, 2, 4, 8) * 20:
        costs.observe(rows, CONTEXT, 3 * CURVE(rows))
    assert costs.now.one_row == pytest.approx(3 * CURVE.one_row, rel=0.05)
    assert draft_length.verify_count(chances) == before > 0


def test_one_pass_that_was_held_up_does_not_deter_for_ever() -> None:
    """The first guess ever verified met a hiccup: two rows seemed too dear, and were not tried
    again in that race or the next.
    """
    costs = LearntCosts(PassCosts(CURVE.widths, tuple(2.5 * s for s in CURVE.seconds)))
    for rows in (1, 1, 1, 2, 1, 1):
        costs.observe(rows, CONTEXT, 10.0 if rows == 1 else 45.0)
    draft_length = AdaptiveDraftLength(costs, 0.0, 16)
    found: list[int] = []
    for _ in range(12 * PATIENCE):
        draft_length.begin(CONTEXT)
        verified = draft_length.verify_count([0.4])
        found.append(verified)
        costs.observe(1 + verified, CONTEXT, CURVE(1 + verified))
        draft_length.learn(outcome(verified, 0))
    assert sum(found[:PATIENCE]) == 0
    assert all(found[-PATIENCE:]), "it turned out to pay"
    certain = AdaptiveDraftLength(CURVE, 0.0, 16)
    assert not any(certain.verify_count([0.01]) for _ in range(4 * PATIENCE))


def test_what_drafting_takes_is_learnt_from_its_calls() -> None:
    """A draft that was timed while the machine was busy counted as dear for as long as it lived."""
    draft_length = AdaptiveDraftLength(CURVE, 8.0, 16)
    assert not draft_length.extends(1, 0.5)
    for _ in range(12):
        draft_length.learn(replace(outcome(2, 1, calls=2), draft_seconds=1.0))
    assert draft_length.extends(1, 0.5)
    before = draft_length._draft
    draft_length.learn(replace(outcome(2, 1, calls=2), draft_seconds=500.0))
    assert draft_length._draft < 1.06 * before, "a hiccup"


@pytest.mark.parametrize("draft", ["lookup", "model"])
def test_a_target_without_trees_gets_chains_alone(draft: str) -> None:
    """Rows that pad a pass hang from the root, so `auto` sent BLOOM, MPT and their like a tree: the
    engine refused, and the column failed.
    """
    engine = FakeEngine(period=2, sharpness=4.0, capabilities=Capabilities(tree=False))
    request = Request("x", max_new_tokens=120)
    steep = PassCosts(CURVE.widths, CURVE.seconds, width_change=5.0)
    length = AdaptiveDraftLength(steep, 0.0, 8, branches=False)
    model = Noisy(engine, 0.5)
    found = run(
        engine,
        request,
        PromptLookup(length, 3) if draft == "lookup" else drafting(model, length),
    )
    assert found.tokens == naive(engine, PROMPT, request)
    assert any(step.drafted for step in found.steps)
