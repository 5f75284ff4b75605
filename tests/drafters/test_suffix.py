"""Suffix decoding proposes what followed the text's ending before, weighed by how often it did."""

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from backend.drafters.draft_length import DraftLength
from backend.drafters.guesses import paths_of
from backend.drafters.suffix import LENGTHS, MORE, NGRAM, SuffixDecoding, kind_of
from backend.types import Outcome

TEXT = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def drafter(k: int = 8, *, chain: bool = False) -> SuffixDecoding:
    return SuffixDecoding(DraftLength(k), chain=chain)


def matched(text: Sequence[int], end: int) -> int:
    """How many tokens before `end` are the text's last ones."""
    n = 0
    while n < min(end, LENGTHS[-1]) and text[end - 1 - n] == text[len(text) - 1 - n]:
        n += 1
    return n


@given(TEXT)
def test_what_it_proposes_followed_the_texts_ending_before(text: list[int]) -> None:
    """Each path continues an occurrence of the ending; there is none only where there is none."""
    found = {end: matched(text, end) for end in range(1, len(text)) if matched(text, end)}
    paths = paths_of(drafter(32).propose(text, 4))
    assert bool(paths) == bool(found)
    looped = {end: (text[end:] * 5)[:4] for end in found}
    for path in paths:
        assert any(tuple(after[: len(path)]) == path for after in looped.values())


@given(TEXT, st.integers(1, 9), st.integers(0, 9))
def test_a_target_without_trees_is_offered_a_chain(text: list[int], k: int, budget: int) -> None:
    proposal = drafter(k, chain=True).propose(text, budget)
    assert proposal.parents == tuple(range(-1, len(proposal.tokens) - 1))
    assert len(proposal.tokens) <= min(k, budget)


@given(TEXT, st.integers(1, 9))
def test_the_chances_of_alternatives_add_up_to_their_parents_at_most(
    text: list[int], k: int
) -> None:
    made = drafter(k)
    made.propose(text, k)
    reached = {guess.path: guess.path_probability for guess in made.guesses} | {(): 1.0}
    behind: Counter[tuple[int, ...]] = Counter()
    for guess in made.guesses:
        behind[guess.path[:-1]] += guess.path_probability  # type: ignore[assignment]
    assert all(total <= reached[path] + 1e-9 for path, total in behind.items())


def test_the_longest_match_comes_first_and_the_more_frequent_of_equal_ones() -> None:
    long = [1, 2, 3, 7, 9, 2, 3, 5, 8, 2, 3, 5, 4, 1, 2, 3]
    assert drafter(chain=True).propose(long, 1).tokens == (7,)
    frequent = [2, 3, 7, 9, 2, 3, 5, 8, 2, 3, 5, 4, 2, 3]
    assert drafter(chain=True).propose(frequent, 1).tokens == (5,)


def test_a_short_match_does_not_promise_much() -> None:
    """A few equal tokens promised 16: mathematics, answers and summaries were slower than with
    prompt lookup's 8, because what was far behind such a match was right half as often as expected.
    """
    for length in (2, 6):
        ending = list(range(length))
        text = [*ending, *range(20, 60), *ending]
        assert len(drafter(16, chain=True).propose(text, 16).tokens) == length + MORE


def test_a_class_of_guesses_that_proves_right_is_trusted_more() -> None:
    made, text = drafter(1, chain=True), [1, 2, 5, 1, 2]
    kind = kind_of(NGRAM, 1, 1)
    before = made._estimates[kind]
    proposal = made.propose(text, 1)
    made.observe(Outcome((5, 6), 1, proposal, None))  # type: ignore[arg-type]
    assert made._estimates[kind] > before


def test_earlier_texts_are_looked_up_too() -> None:
    made = SuffixDecoding(DraftLength(2), chain=True, earlier=[[1, 2, 3, 4]])
    made.prefill([9, 1, 2], 3)
    assert made.propose([9, 1, 2], 5).tokens == (3, 4)
