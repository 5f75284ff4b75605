"""Lookahead against the paper (arXiv 2402.02057): its mask, its windows, its n-gram pool; and the
sizes that `auto` chooses are those that costs promise most of.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
from loop_runs import PROMPT, run

from backend.costs import UNKNOWN_COSTS, PassCosts
from backend.drafters.lookahead import YIELDS, Lookahead, Sizes, choose_sizes
from backend.engines.fake import FakeEngine
from backend.types import Outcome, Proposal, Request

SHAPES = [(2, 2, 1), (5, 2, 3), (5, 3, 5), (7, 4, 7), (3, 8, 2), (15, 5, 15)]
ENGINE = FakeEngine(period=3, sharpness=4.0)
REQUEST = Request("x", max_new_tokens=60)


@dataclass
class Round:
    """One step: what was proposed after `context`, and what came of it."""

    context: tuple[int, ...]
    guesses: list[tuple[int, ...]]
    proposal: Proposal
    outcome: Outcome


class Recorded(Lookahead):
    def __init__(self, shape: tuple[int, int, int], *, seeded: bool) -> None:
        super().__init__(Sizes(*shape), seeded=seeded, seed=3)
        self.rounds: list[Round] = []

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        proposal = super().propose(context, budget)
        guesses = [guess[:budget] for guess in self._pool.guesses(context[-1])]
        self.latest = tuple(context), guesses, proposal
        return proposal

    def observe(self, outcome: Outcome) -> None:
        super().observe(outcome)
        if outcome.proposal.feedback:
            self.rounds.append(Round(*self.latest, outcome))


def recorded(
    shape: tuple[int, int, int], *, seeded: bool = False, engine: FakeEngine = ENGINE
) -> list[Round]:
    drafter = Recorded(shape, seeded=seeded)
    run(engine, REQUEST, drafter)
    return drafter.rounds


def widths(shape: tuple[int, int, int], step: int) -> list[int]:
    """Tokens of each level besides the root: W - 1, then W; and a column more for every level
    that is still to come while the window fills.
    """
    window, level, _ = shape
    levels = min(step + 1, level - 1)
    spare = level - 1 - levels
    return [window - 1 + spare] + [window + spare] * (levels - 1)


def cells(shape: tuple[int, int, int], step: int) -> list[tuple[int, int]]:
    """(level, column) of the lookahead tokens in the order that they are sent; the root is (0, 0),
    so level 0 begins at column 1.
    """
    return [
        (level, column + (level == 0))
        for level, width in enumerate(widths(shape, step))
        for column in range(width)
    ]


def ancestors(parents: Sequence[int], row: int) -> set[int]:
    rows: set[int] = set()
    while row >= 0:
        rows.add(row)
        row = parents[row]
    return rows


def path(proposal: Proposal, row: int) -> list[int]:
    return [proposal.tokens[i] for i in sorted(ancestors(proposal.parents, row))]


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_each_branch_sees_what_the_papers_mask_shows_it(
    shape: tuple[int, int, int], seeded: bool
) -> None:
    """And the deepest level's logits come back from left to right."""
    guessed = 0
    for step, this in enumerate(recorded(shape, seeded=seeded)):
        proposal, where = this.proposal, cells(shape, step)
        assert (proposal.scratch, proposal.feedback) == (len(where), widths(shape, step)[-1])
        for i, (level, column) in enumerate(where):
            # Everybody sees context and root. Level 0 sees the columns before its own; the others
            # see their own column upwards, and what its token of level 0 sees.
            expected = {
                proposal.drafted + j
                for j, (other_level, other_column) in enumerate(where)
                if (other_level == 0 and other_column <= column)
                or (other_column == column and other_level <= level)
            }
            visible = ancestors(proposal.parents, proposal.drafted + i)
            assert visible == expected, (step, level, column)
        branches = [tuple(path(proposal, row)) for row in range(proposal.drafted)]
        assert len(branches) == len(set(branches)), "common beginnings are sent once"
        assert set(branches) == {
            guess[: n + 1] for guess in this.guesses for n in range(len(guess))
        }
        guessed += bool(branches)
        total = len(proposal.tokens)
        deepest = range(total - proposal.feedback, total)
        for logits, row in zip(this.outcome.feedback, deepest, strict=True):
            assert (logits == ENGINE.logits([*this.context, *path(proposal, row)])).all()
    assert guessed > 3


def window_of(shape: tuple[int, int, int], step: int, this: Round) -> dict[tuple[int, int], int]:
    """The window's tokens by (level, column), the root among them."""
    scratch = this.proposal.tokens[this.proposal.drafted :]
    return {(0, 0): this.context[-1], **dict(zip(cells(shape, step), scratch, strict=True))}


def predictions(shape: tuple[int, int, int], step: int, this: Round) -> dict[int, int]:
    """By column: what the model itself says comes after the deepest level."""
    total, feedback = len(this.proposal.tokens), this.proposal.feedback
    first = cells(shape, step)[-feedback][1]
    return {
        first + i: int(ENGINE.logits([*this.context, *path(this.proposal, row)]).argmax())
        for i, row in enumerate(range(total - feedback, total))
    }


@pytest.mark.parametrize("shape", SHAPES)
def test_the_window_moves_up_a_level_and_one_run_to_the_right(
    shape: tuple[int, int, int],
) -> None:
    """Column c of the next window stands for the position that column c + 1 stood for."""
    level = shape[1]
    rounds = recorded(shape)
    for step, (this, after) in enumerate(pairwise(rounds)):
        now, then = window_of(shape, step, this), window_of(shape, step + 1, after)
        new = predictions(shape, step, this)
        filling = step + 1 < level - 1
        for (depth, column), token in then.items():
            if (depth, column) == (0, 0):
                continue
            if filling:
                old = now.get((depth, column + 1), new.get(column + 1))
            else:
                old = now.get((depth + 1, column), new.get(column))
            assert token == old, (step, depth, column)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_pool_holds_the_youngest_columns_and_nothing_else(shape: tuple[int, int, int]) -> None:
    level, guesses = shape[1:]
    drafter = Recorded(shape, seeded=False)
    run(ENGINE, REQUEST, drafter)
    read: list[tuple[int, ...]] = []  # every n-gram, oldest first
    for step, this in enumerate(drafter.rounds):
        if len(widths(shape, step)) < level - 1:
            continue
        tokens = window_of(shape, step, this)
        for column, last in predictions(shape, step, this).items():
            read.append((*(tokens[depth, column] for depth in range(level - 1)), last))
    assert read
    for token in range(ENGINE.vocab_size):
        youngest = dict.fromkeys(ngram[1:] for ngram in reversed(read) if ngram[0] == token)
        assert drafter._pool.guesses(token) == list(youngest)[:guesses]


def test_a_seeded_pool_knows_the_ngrams_of_prompt_and_output() -> None:
    shape = (4, 3, 1000)
    drafter = Recorded(shape, seeded=True)
    run(ENGINE, REQUEST, drafter)
    text = drafter.rounds[-1].context
    for end in range(3, len(text) + 1):
        first, *rest = text[end - 3 : end]
        assert tuple(rest) in drafter._pool.guesses(first)
    unseeded = Recorded(shape, seeded=False)
    unseeded.prefill(PROMPT, len(PROMPT))
    assert unseeded.propose(PROMPT, 9).drafted == 0


def test_equal_seeds_make_equal_windows() -> None:
    def first(seed: int) -> Proposal:
        return Lookahead(Sizes(6, 3, 2), seeded=False, seed=seed).propose(PROMPT, 9)

    assert first(1) == first(1)
    assert first(1) != first(2)
    assert set(first(1).tokens) <= set(PROMPT)


# Which one runs where ----------------------------------------------------------------------------

CURVE = PassCosts((1, 2, 4, 8, 16), (10.0, 11.0, 12.0, 14.0, 22.0))
FLAT = PassCosts((1, 64), (10.0, 10.0))
STEEP = PassCosts((1, 16), (10.0, 40.0))


@pytest.mark.parametrize("costs", [CURVE, FLAT, STEEP, PassCosts((1, 16), (10.0, 14.0), 3.0)])
def test_the_best_setting_is_the_one_that_costs_promise_most_of(costs: PassCosts) -> None:
    def speedup(sizes: Sizes) -> float:
        return YIELDS[sizes] * costs(1) / (costs(sizes.rows) + costs.width_change)

    sizes, decision = choose_sizes(costs)
    assert speedup(sizes) == max(map(speedup, YIELDS))
    assert Sizes(**decision.settings) == sizes
    assert bool(decision.declined) == (speedup(sizes) <= 1), "it says where it does not pay"
    assert choose_sizes(FLAT)[0] == max(YIELDS, key=YIELDS.__getitem__)
    assert not choose_sizes(UNKNOWN_COSTS)[1].declined, "nor where costs are unknown"
