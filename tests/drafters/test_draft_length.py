"""How much to draft: the best round under known costs, and beliefs that follow what happens."""

from itertools import accumulate
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.costs.pass_costs import PassCosts
from backend.decoding.sampling import Pair
from backend.drafters.acceptance import PATIENCE, Calibration
from backend.drafters.draft_length import AcceptanceEstimates, AdaptiveDraftLength, FixedDraftLength
from backend.drafters.guesses import proposal_of
from backend.types import Outcome, Proposal

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


def test_certain_guesses_are_all_verified_and_hopeless_ones_never() -> None:
    assert AdaptiveDraftLength(CURVE, 0.0, 16).verify_count([1.0] * 8) == 8
    assert AdaptiveDraftLength(CURVE, 0.0, 16).verify_count([0.01] * 8) == 0
    assert FixedDraftLength(8).verify_count([0.01] * 8) == 8


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
    assert draft_length._earned == pytest.approx((10.0 + 11.0) / 2 + 5.0, rel=0.02)


@given(st.lists(st.booleans(), max_size=400), st.floats(0, 1))
def test_beliefs_move_towards_what_happens(found: list[bool], prior: float) -> None:
    chances = AcceptanceEstimates([prior], weight=8.0)
    for right in found:
        chances.learn(0, right=right)
    expected = (8 * prior + sum(found)) / (8 + len(found))
    assert chances[0] == pytest.approx(expected)
    assert 0 <= chances[0] <= 1


def test_a_draft_that_is_never_right_is_asked_once_in_a_while_only() -> None:
    draft_length, confidence = AdaptiveDraftLength(CURVE, 2.0, 8), Calibration()
    asked: list[bool] = []
    for _ in range(200):
        asked.append(confidence.asks(draft_length))
        if asked[-1]:
            confidence.add(Pair(5, 0.1, 6), second=False)
            confidence.learn(outcome(1, 0))
    assert all(asked[:3])
    assert 200 / PATIENCE - 2 <= sum(asked[20:]) <= 200 / PATIENCE + 2


def chances(confidence: Calibration, *gaps: float) -> list[float]:
    """What it believes of guesses with such gaps, best and second best, each as a round's first."""
    found: list[float] = []
    for gap in gaps:
        confidence.asks(FixedDraftLength(1))
        confidence.add(Pair(1, gap, 2), second=True)
        found += [guess.path_probability for guess in confidence.guesses]
    return found


def test_only_what_was_judged_is_learnt() -> None:
    """The first guess right, the second wrong but its runner-up right, the third never seen."""
    confidence = Calibration()
    gaps = (0.1, 7.0, 2.5)
    before = chances(confidence, *gaps)
    confidence.asks(FixedDraftLength(3))
    for token, gap in zip((0, 9, 2), gaps, strict=True):
        confidence.add(Pair(token, gap, 99), second=True)
    confidence.learn(outcome(3, 1))
    moved = [(b > a) - (b < a) for a, b in zip(before, chances(confidence, *gaps), strict=True)]
    # A round's guesses in order: the runner-up, then the best.
    assert moved == [-1, 1, 1, -1, 0, 0]


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 9), st.integers(4, 6)), max_size=6))
def test_what_is_verified_is_a_tree_of_the_best_guesses(
    found: list[tuple[int, float, int]],
) -> None:
    confidence, draft_length = Calibration(), AdaptiveDraftLength(CURVE, 0.1, 16)
    confidence.asks(draft_length)
    for token, gap, second in found:
        confidence.add(Pair(token, gap, second), second=True)
    proposal = proposal_of(confidence.guesses, draft_length, len(found))
    assert proposal.calls == len(found)
    paths: list[tuple[int, ...]] = []
    for row, (token, parent) in enumerate(zip(proposal.tokens, proposal.parents, strict=True)):
        assert -1 <= parent < row
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    known = {guess.path: guess.path_probability for guess in confidence.guesses}
    assert len(set(paths)) == len(paths)
    assert set(paths) <= set(known)
    left = [path_probability for path, path_probability in known.items() if path not in paths]
    assert max(left, default=0.0) <= min((known[path] for path in paths), default=1.0)
    chosen = proposal_of(confidence.guesses, FixedDraftLength(3))
    assert len(chosen.tokens) == len(known)
