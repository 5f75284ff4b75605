"""How much to draft: the best round under known costs, and beliefs that follow what happens."""

from itertools import accumulate
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.costs.pass_costs import Costs
from backend.decoding.sampling import Pair
from backend.drafters.acceptance import PATIENCE, Confidence
from backend.drafters.draft_length import BestPace, Chances, FixedPace
from backend.drafters.guesses import proposal_of
from backend.types import Outcome, Proposal

CURVE = Costs((1, 2, 4, 8, 16), (10.0, 11.0, 12.0, 14.0, 22.0), 0.0)
NO_LOGITS: object = ()


def outcome(drafted: int, accepted: int, calls: int = 0) -> Outcome:
    proposal = Proposal.chain(range(drafted), calls=calls)
    tokens = (*range(accepted), 99)
    return Outcome(tokens, accepted, proposal, NO_LOGITS)  # type: ignore[arg-type]


@given(st.lists(st.floats(0, 1), max_size=12))
def test_no_other_number_of_tokens_promises_more(chances: list[float]) -> None:
    survivals = list(accumulate(chances, mul))
    pace = BestPace(CURVE, 0.0, 16)

    def gain(drafted: int) -> float:
        """At the outset a token costs what a plain step does."""
        return CURVE.plain * sum(survivals[:drafted]) - CURVE(1 + drafted)

    chosen = pace.worth(survivals)
    assert gain(chosen) == max(gain(n) for n in range(len(survivals) + 1))


def test_certain_guesses_are_all_verified_and_hopeless_ones_never() -> None:
    assert BestPace(CURVE, 0.0, 16).worth([1.0] * 8) == 8
    assert BestPace(CURVE, 0.0, 16).worth([0.01] * 8) == 0
    assert FixedPace(8).worth([0.01] * 8) == 8


def test_cheap_tokens_make_it_choosy() -> None:
    """What a token costs lately is what another one must beat."""
    pace = BestPace(CURVE, 0.0, 16)
    before = pace.worth([0.25, 0.2, 0.15])
    for _ in range(100):
        pace.learn(outcome(7, 7))
    assert before > 0
    assert pace.worth([0.25, 0.2, 0.15]) == 0


def test_a_dear_draft_is_asked_for_less() -> None:
    def depth(call: float) -> int:
        pace = BestPace(CURVE, call, 16)
        return next(n for n in range(17) if not pace.goes_on(n, 0.8**n))

    assert depth(0.1) > depth(2.0) > depth(9.0) >= 0
    assert not BestPace(CURVE, 30.0, 16).goes_on(0, 1.0)


def test_a_change_of_width_is_paid_for() -> None:
    """Where another number of rows costs time, a small gain is not worth it."""
    steep = Costs(CURVE.widths, CURVE.seconds, change=5.0)
    assert BestPace(CURVE, 0.0, 16).worth([0.3]) == 1
    pace = BestPace(steep, 0.0, 16)
    assert pace.worth([0.3]) == 0
    pace.learn(outcome(1, 1))
    assert pace.worth([0.9]) == 1, "now staying is what costs nothing"


def test_what_a_token_cost_counts_a_change_of_width_once() -> None:
    """It was counted twice, as in planning: tokens seemed dear, and too much was drafted."""
    steep = Costs(CURVE.widths, CURVE.seconds, change=5.0)
    pace = BestPace(steep, 0.0, 16)
    for turn in range(400):
        pace.learn(outcome(turn % 2, 0))  # one row, two rows, and so on: one token each
    assert pace._earned == pytest.approx((10.0 + 11.0) / 2 + 5.0, rel=0.02)


@given(st.lists(st.booleans(), max_size=400), st.floats(0, 1))
def test_beliefs_move_towards_what_happens(found: list[bool], prior: float) -> None:
    chances = Chances([prior], weight=8.0)
    for right in found:
        chances.learn(0, right=right)
    expected = (8 * prior + sum(found)) / (8 + len(found))
    assert chances[0] == pytest.approx(expected)
    assert 0 <= chances[0] <= 1


def test_a_draft_that_is_never_right_is_asked_once_in_a_while_only() -> None:
    pace, confidence = BestPace(CURVE, 2.0, 8), Confidence()
    asked: list[bool] = []
    for _ in range(200):
        asked.append(confidence.asks(pace))
        if asked[-1]:
            confidence.add(Pair(5, 0.1, 6), second=False)
            confidence.learn(outcome(1, 0))
    assert all(asked[:3])
    assert 200 / PATIENCE - 2 <= sum(asked[20:]) <= 200 / PATIENCE + 2


def chances(confidence: Confidence, *gaps: float) -> list[float]:
    """What it believes of guesses with such gaps, best and second best, each as a round's first."""
    found: list[float] = []
    for gap in gaps:
        confidence.asks(FixedPace(1))
        confidence.add(Pair(1, gap, 2), second=True)
        found += [guess.survival for guess in confidence.guesses]
    return found


def test_only_what_was_judged_is_learnt() -> None:
    """The first guess right, the second wrong but its runner-up right, the third never seen."""
    confidence = Confidence()
    gaps = (0.1, 7.0, 2.5)
    before = chances(confidence, *gaps)
    confidence.asks(FixedPace(3))
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
    confidence, pace = Confidence(), BestPace(CURVE, 0.1, 16)
    confidence.asks(pace)
    for token, gap, second in found:
        confidence.add(Pair(token, gap, second), second=True)
    proposal = proposal_of(confidence.guesses, pace, len(found))
    assert proposal.calls == len(found)
    paths: list[tuple[int, ...]] = []
    for row, (token, parent) in enumerate(zip(proposal.tokens, proposal.parents, strict=True)):
        assert -1 <= parent < row
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    known = {guess.path: guess.survival for guess in confidence.guesses}
    assert len(set(paths)) == len(paths)
    assert set(paths) <= set(known)
    left = [survival for path, survival in known.items() if path not in paths]
    assert max(left, default=0.0) <= min((known[path] for path in paths), default=1.0)
    chosen = proposal_of(confidence.guesses, FixedPace(3))
    assert len(chosen.tokens) == len(known)
