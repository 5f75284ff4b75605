"""Token recycling proposes the most probable tokens of the rows that were computed."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from backend.drafters.draft_length import DraftLength
from backend.drafters.guesses import paths_of
from backend.drafters.recycling import BREADTH, TokenRecycling, best_tokens
from backend.types import Logits, Outcome, Proposal

NONE = np.zeros((0, 0), np.float32)


def drafter(k: int = 8, *, chain: bool = False, **given: object) -> TokenRecycling:
    return TokenRecycling(DraftLength(k), chain=chain, **given)  # type: ignore[arg-type]


def row(*best: int, size: int = 20) -> Logits:
    """Logits whose highest are these tokens', in their order."""
    logits = np.zeros(size, np.float32)
    logits[list(best)] = range(len(best), 0, -1)
    return logits


def outcome(tokens: tuple[int, ...], proposal: Proposal, *rows: Logits) -> Outcome:
    return Outcome(tokens, len(tokens) - 1, proposal, NONE, 0.0, np.array(rows))


@given(st.integers(1, 4), st.integers(0, 5), st.integers(0, 1 << 30))
def test_the_best_tokens_are_those_of_a_sort(count: int, rows: int, seed: int) -> None:
    logits = np.random.default_rng(seed).standard_normal((rows, 30)).astype(np.float32)
    kept = logits.copy()
    expected = np.argsort(-logits, axis=1)[:, :count]
    assert (best_tokens(logits, count) == expected).all()
    assert (logits == kept).all()


def test_what_a_row_held_is_proposed_behind_its_token() -> None:
    """Also what stands behind a guess that was wrong: its row was computed all the same."""
    made = drafter(8)
    made.prefill([7, 3], 2)
    made.observe(outcome((5,), Proposal(), row(5, 6, 8, 9)))  # the row of token 3
    proposal = made.propose([7, 3, 5], 4)
    assert not proposal.tokens  # nobody has computed a row of token 5 yet
    made.observe(outcome((3,), proposal, row(3, 4, 1, 2)))
    proposal = made.propose([7, 3, 5, 3], 4)
    paths = paths_of(proposal)
    assert paths[0] == (5,)
    assert {path for path in paths if len(path) == 1} >= {(5,), (6,)}
    assert (5, 3) in paths
    wrong = paths.index((6,)) if (6,) in paths else 1
    rows = [row(9, size=20)] * (1 + proposal.drafted)
    rows[1 + wrong] = row(11, 12, 13, 14)
    made.observe(outcome((9,), proposal, *rows))
    assert made._after[6] == [11, 12, 13, 14]


@given(st.lists(st.integers(0, 5), min_size=2, max_size=30), st.integers(1, 9), st.integers(0, 6))
def test_trees_hold_no_path_twice_and_nothing_too_deep(
    text: list[int], k: int, budget: int
) -> None:
    made = drafter(k)
    made.prefill(text, len(text))
    paths = paths_of(made.propose(text, budget))
    assert len(set(paths)) == len(paths) <= k
    assert all(len(path) <= budget for path in paths)
    assert all(path[:-1] in paths for path in paths if len(path) > 1)


def test_a_target_without_trees_is_offered_a_chain() -> None:
    made = drafter(5, chain=True)
    made.prefill([1, 2, 3, 1, 4, 1], 6)
    proposal = made.propose([1, 2, 3, 1, 4, 1], 9)
    assert proposal.parents == tuple(range(-1, len(proposal.tokens) - 1))
    assert proposal.tokens[0] == 4  # what followed last


def test_earlier_texts_are_a_warm_start_until_a_row_is_computed() -> None:
    made = drafter(1, earlier=[[1, 2], [1, 3]])
    made.prefill([9, 1], 2)
    assert made.propose([9, 1], 5).tokens == (3,)
    made.observe(outcome((1,), Proposal(), row(*range(10, 10 + BREADTH))))
    assert made.propose([9, 1, 1], 5).tokens == (10,)
