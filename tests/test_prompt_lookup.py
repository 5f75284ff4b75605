"""Prompt lookup proposes what a search through the whole text from scratch would find."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.drafters.pace import FixedPace
from backend.drafters.prompt_lookup import PromptLookup
from backend.types import chain_parents


def brute_force(text: Sequence[int], k: int, ngram: int, budget: int) -> tuple[int, ...]:
    """Longest ending first, latest earlier occurrence first; a loop goes on with itself."""
    for n in range(min(ngram, len(text)), 0, -1):
        for start in range(len(text) - n - 1, -1, -1):
            if text[start : start + n] == text[len(text) - n :]:
                longer = list(text)
                while len(longer) < len(text) + min(k, budget):
                    longer.append(longer[start + n + len(longer) - len(text)])
                return tuple(longer[len(text) :])
    return ()


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), max_size=6),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(-1, 10),
)
def test_it_proposes_what_a_search_of_the_whole_text_finds(
    prompt: list[int], blocks: list[list[int]], k: int, ngram: int, budget: int
) -> None:
    drafter = PromptLookup(FixedPace(k), ngram)
    text: list[int] = []
    for block in (prompt, *blocks):
        text += block
        proposal = drafter.propose(text, budget)
        assert proposal.tokens == brute_force(text, k, ngram, budget)
        assert proposal.parents == chain_parents(len(proposal.tokens))
        assert (proposal.scratch, proposal.feedback) == (0, 0)


@pytest.mark.parametrize("period", range(1, 6))
def test_a_loop_is_proposed_as_a_loop(period: int) -> None:
    loop = list(range(period))
    text = [9, *loop, *loop]
    proposal = PromptLookup(FixedPace(17), 3).propose(text, 100)
    assert proposal.tokens == tuple((loop * 17)[:17])


def test_a_text_that_never_repeats_gets_no_proposal() -> None:
    drafter = PromptLookup(FixedPace(4), 3)
    for length in range(1, 30):
        assert drafter.propose(range(length), 8).tokens == ()
