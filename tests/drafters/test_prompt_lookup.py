"""Prompt lookup proposes what a search through the whole text from scratch would find."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from backend.drafters.draft_length import DraftLength
from backend.drafters.prompt_lookup import PromptLookup
from backend.types import Outcome, Proposal, chain_parents


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
    st.lists(st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(0, 9))),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(-1, 10),
)
def test_it_proposes_what_a_search_of_the_whole_text_finds(
    prompt: list[int], blocks: list[tuple[list[int], int]], k: int, ngram: int, budget: int
) -> None:
    """Also of a text that is cut back on the way."""
    drafter = PromptLookup(DraftLength(k), ngram)
    drafter.prefill(prompt, len(prompt))
    text = list(prompt)
    for block, cut in [([], 0), *blocks]:
        if cut and cut < len(text):
            del text[cut:]
            drafter.rewind(cut)
        text += block
        proposal = drafter.propose(text, budget)
        assert proposal.tokens == brute_force(text, k, ngram, budget)
        assert proposal.parents == chain_parents(len(proposal.tokens))


class Counted(list[int]):
    """A text that counts its tokens as they are read."""

    read = 0

    def __getitem__(self, place: object) -> object:  # type: ignore[override]
        found = super().__getitem__(place)  # type: ignore[call-overload]
        self.read += len(found) if isinstance(place, slice) else 1
        return found

    def __iter__(self) -> object:  # type: ignore[override]
        raise AssertionError("the whole text is read")


def test_a_round_reads_what_is_new_and_not_the_whole_text() -> None:
    """It was copied in every step, on the clock: a step's cost grew with the text."""
    drafter = PromptLookup(DraftLength(4), 3)
    text = Counted(range(5000))
    drafter.prefill(text, len(text))
    before = text.read
    for token in range(50):
        text.append(token)
        drafter.propose(text, 9)
    assert text.read - before == 50


def test_what_a_grammar_forces_is_not_taken_for_written() -> None:
    """A text may end within forced tokens (a stop string), and a program goes on otherwise."""
    drafter = PromptLookup(DraftLength(3), 2)
    forced = [5, 6, 7]
    proposal = drafter.propose([1, 2, *forced], 9).behind(forced)
    drafter.observe(Outcome((5,), 1, proposal, np.zeros((0, 1), np.float32)))
    assert drafter.propose([1, 2, 5, 8, 1, 2, 5], 9).tokens == (8, 1, 2)


def test_branches_offer_what_followed_other_occurrences() -> None:
    text = [1, 2, 3, 9, 1, 2, 4, 9, 1, 2]

    def proposed(branches: int) -> Proposal:
        return PromptLookup(DraftLength(2), 2, branches).propose(text, 9)

    assert proposed(1).tokens == (4, 9)
    assert set(proposed(2).paths) == {(4,), (4, 9), (3,), (3, 9)}
