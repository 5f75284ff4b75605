"""How much to draft: no other round earns more under known costs, the rule comes near the highest
rate, its means follow what happens, and what it decided is summed up once.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loop_runs import PROMPT, drafting, run

from backend.costs import CONTEXT, PassCosts, RunningCosts
from backend.decoding.sampling import Sampler
from backend.decoding.seams import UNDECIDED
from backend.drafters.draft_length import (
    PRIOR_WEIGHT,
    REMEMBERED,
    Acceptance,
    AdaptiveDraftLength,
    DraftLength,
    Guess,
    Path,
)
from backend.drafters.network_drafter import Hybrid, NetworkDrafter
from backend.drafters.prompt_lookup import PromptLookup
from backend.engines.fake import FakeEngine
from backend.strategies.declaration import DrafterInputs
from backend.types import Outcome, Proposal, Request, Sampling

CURVE = PassCosts((1, 2, 4, 8, 16), (10.0, 11.0, 12.0, 14.0, 22.0))
NO_LOGITS: object = ()


def outcome(drafted: int, accepted: int, calls: int = 0) -> Outcome:
    proposal = Proposal.chain(range(drafted), calls=calls)
    tokens = (*range(accepted), 99)
    return Outcome(tokens, tuple(range(accepted)), proposal, NO_LOGITS)  # type: ignore[arg-type]


def count(draft_length: DraftLength, chances: Sequence[float]) -> int:
    return draft_length.best(chances)[1]


@given(st.lists(st.floats(0, 1), max_size=12))
def test_no_other_number_of_tokens_promises_more(chances: list[float]) -> None:
    path_chances = list(accumulate(chances, mul))

    def gain(drafted: int) -> float:
        """At the outset a token costs what a plain step does."""
        return CURVE.one_row * sum(path_chances[:drafted]) - CURVE(1 + drafted)

    earned, chosen = AdaptiveDraftLength(CURVE, 0.0, 16).best(path_chances)
    gains = [gain(n) for n in range(len(path_chances) + 1)]
    assert gains[chosen] == pytest.approx(max(gains)) == pytest.approx(earned)


@pytest.mark.parametrize("chance", [0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("call", [0.0, 0.4, 2.0])
def test_the_rule_comes_to_the_highest_rate_on_known_costs(chance: float, call: float) -> None:
    """Of all numbers of tokens to draft, each right with the same chance, that which writes most a
    second in the long run: learnt from its own rounds alone.
    """

    def per_second(k: int) -> float:
        return sum(chance**i for i in range(k + 1)) / (CURVE(1 + k) + k * call)

    draft_length = AdaptiveDraftLength(CURVE, call, 16)
    depth = 0
    for _ in range(300):
        depth = next(n for n in range(17) if not draft_length.extends(n, chance ** (n + 1)))
        expected = sum(chance**i for i in range(depth + 1))
        result = outcome(depth, 0, depth)
        for _ in range(3):  # as many tokens as are expected, on average
            tokens = range(round(expected))
            draft_length.learn(replace(result, tokens=tuple(tokens), draft_seconds=depth * call))
    assert per_second(depth) > 0.9 * max(per_second(k) for k in range(17))


def test_a_change_of_width_is_paid_for() -> None:
    """Where another number of rows costs time, a small gain is not worth it."""
    steep = PassCosts(CURVE.widths, CURVE.seconds, width_change=5.0)
    draft_length = AdaptiveDraftLength(steep, 0.0, 16)
    assert count(AdaptiveDraftLength(CURVE, 0.0, 16), [0.3]) == 1
    assert count(draft_length, [0.3]) == 0
    draft_length.learn(outcome(1, 1))
    assert count(draft_length, [0.9]) == 1, "now staying is what costs nothing"


def test_behind_a_long_context_rows_cost_more() -> None:
    growing = PassCosts(CURVE.widths, CURVE.seconds, context_slope=(0.0, 0.01))
    draft_length = AdaptiveDraftLength(growing, 0.0, 16)
    assert count(draft_length, [0.3]) == 1
    draft_length.learn(replace(outcome(1, 1), position=1000))
    assert count(draft_length, [0.3]) == 0


def test_a_token_is_as_dear_as_the_machine_is_slow_now() -> None:
    costs = RunningCosts(CURVE)
    draft_length, chances = AdaptiveDraftLength(costs, 0.0, 16), [0.6, 0.3, 0.12, 0.05]
    before = count(draft_length, chances)
    for rows in (1, 2, 4, 8) * 40:
        costs.observe(rows, CONTEXT, 3 * CURVE(rows))
    assert costs.now.one_row == pytest.approx(3 * CURVE.one_row, rel=0.05)
    assert count(draft_length, chances) == before > 0


def test_what_drafting_takes_is_learnt_from_its_calls() -> None:
    draft_length = AdaptiveDraftLength(CURVE, 8.0, 16)
    assert not draft_length.extends(1, 0.5)
    for _ in range(30):
        draft_length.learn(replace(outcome(2, 1, calls=2), draft_seconds=1.0))
    assert draft_length.extends(1, 0.5)
    before = draft_length._call
    draft_length.learn(replace(outcome(2, 1, calls=2), draft_seconds=500.0))
    assert draft_length._call < 1.06 * before, "a hiccup"


@given(st.lists(st.booleans(), max_size=50), st.floats(0, 1))
def test_acceptance_moves_towards_what_happens_and_back_where_nothing_does(
    outcomes: list[bool], prior: float
) -> None:
    acceptance = Acceptance([prior])
    for right in outcomes:
        acceptance.learn(0, right=right)
    assert acceptance[0] == pytest.approx(
        (PRIOR_WEIGHT * prior + sum(outcomes)) / (PRIOR_WEIGHT + len(outcomes))
    )
    for right in [False] * 5000 + [True] * int(2 * REMEMBERED):
        acceptance.learn(0, right=right)
    assert acceptance[0] > 0.8, "what was long ago counts no more"
    for _ in range(3000):
        acceptance.forget(0)
    assert acceptance[0] == pytest.approx(prior, abs=1e-3)


def test_only_what_was_decided_is_learnt() -> None:
    """The first guess right, the second wrong but its sibling right, the third never seen."""
    acceptance = Acceptance([0.5] * 5)
    paths: list[Path] = [(1,), (1, 2), (1, 3), (1, 2, 4), (9,)]
    acceptance.learn_all([Guess(path, 0.5, kind) for kind, path in enumerate(paths)], (1, 3))
    moved = [(acceptance[kind] > 0.5) - (acceptance[kind] < 0.5) for kind in range(5)]
    assert moved == [1, -1, 1, 0, -1]


@pytest.mark.parametrize(("call", "most"), [(0.4, 0.3), (3.0, 0.1), (12.0, 0.0)])
def test_a_draft_that_is_never_right_is_asked_once_in_a_while(call: float, most: float) -> None:
    drafter = drafting(FakeEngine(), AdaptiveDraftLength(CURVE, call, 8))
    text, calls = list(PROMPT), list[bool]()
    for _ in range(400):
        proposal = drafter.propose(text, 99)
        wrong = (proposal.tokens[0] + 1) % 200 if proposal.tokens else 7
        result = Outcome((wrong,), (), proposal, NO_LOGITS, draft_seconds=proposal.calls * call)  # type: ignore[arg-type]
        drafter.observe(result)
        calls.append(proposal.calls > 0)
        text.append(wrong)
    assert sum(calls[100:]) / 300 <= most
    assert any(calls[100:]) or not most, "it may have become right"


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(0.05, 1), st.integers(4, 6)), max_size=6),
)
def test_what_is_verified_is_a_tree_of_the_best_guesses(
    chain: list[tuple[int, float, int]],
) -> None:
    path, reached, guesses = (), 1.0, list[Guess]()
    for token, chance, second in chain:
        guesses.append(Guess((*path, second), reached * (1 - chance) / 2, 1))
        path, reached = (*path, token), reached * chance
        guesses.append(Guess(path, reached, 0))
    known = {guess.path: guess.chance for guess in guesses}
    proposal = AdaptiveDraftLength(CURVE, 0.1, 16).proposal(guesses, len(chain))
    paths = proposal.paths
    assert proposal.calls == len(chain)
    assert len(set(paths)) == len(paths)
    assert all(path[:-1] in {(), *paths} for path in paths)
    left = [chance for path, chance in known.items() if path not in paths]
    assert max(left, default=0.0) <= min((known[path] for path in paths), default=1.0)
    assert set(DraftLength(3).proposal(guesses).paths) == set(known)


@pytest.mark.parametrize("k", [1, 4])
def test_every_drafter_sums_up_once_when_the_text_has_ended(k: int) -> None:
    """Of a hybrid, whose two drafters share a draft length, no round counts twice."""
    engine = FakeEngine(period=2, sharpness=4.0)
    request = Request("x", max_new_tokens=60)

    def model(draft_length: DraftLength) -> NetworkDrafter:
        return drafting(engine, draft_length)

    def hybrid(draft_length: DraftLength) -> Hybrid:
        return Hybrid(PromptLookup(draft_length, 3), model(draft_length), draft_length)

    for make in (model, hybrid, lambda draft_length: PromptLookup(draft_length, 3)):
        drafter = make(AdaptiveDraftLength(CURVE, 0.1, k))
        column = run(engine, request, drafter)
        drafter.conclude()
        guessed = [step for step in column.steps[1:] if step.drafted]
        assert 1 <= drafter.decision.settings["k"] <= k
        assert f"in {len(guessed)} of {len(column.steps) - 1} passes" in drafter.decision.why
        fixed = make(DraftLength(k))
        run(engine, request, fixed)
        fixed.conclude()
        assert fixed.decision == UNDECIDED


def test_where_passes_check_chains_alone_a_draft_guesses_chains() -> None:
    """A session of such an engine refuses trees."""
    engine = FakeEngine(period=5, sharpness=4.0, guesses="chains")
    sampler = Sampler(Sampling())
    length = DrafterInputs({"auto": True, "k": 8}, engine, CURVE, sampler).draft_length()
    assert run(engine, Request("x", max_new_tokens=60), drafting(engine, length)).score.drafted > 0
