"""Prompt lookup proposes what a search through the whole text from scratch would find."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from backend.drafters.draft_length import DraftLength
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
    drafter = PromptLookup(DraftLength(k), ngram)
    text: list[int] = []
    for block in (prompt, *blocks):
        text += block
        proposal = drafter.propose(text, budget)
        assert proposal.tokens == brute_force(text, k, ngram, budget)
        assert proposal.parents == chain_parents(len(proposal.tokens))
        assert (proposal.scratch, proposal.feedback) == (0, 0)


@given(
    st.lists(st.lists(st.integers(0, 3), max_size=12), max_size=4),
    st.lists(st.integers(0, 5), min_size=1, max_size=10),
    st.integers(1, 3),
)
def test_earlier_texts_are_looked_up_where_the_present_one_has_nothing(
    earlier: list[list[int]], text: list[int], ngram: int
) -> None:
    """The longest match wins, the present text's before an earlier one's, later texts first; what
    is proposed ends with the text it comes from.
    """
    drafter = PromptLookup(DraftLength(4), ngram, 1, earlier)
    drafter.prefill(text, len(text))
    proposal = drafter.propose(text, 9)

    def sources(n: int) -> list[list[int]]:
        """What followed the text's last n tokens, in the order of preference."""
        found = [
            list(whole[i + n : i + n + 4])
            for whole in reversed(earlier)
            for i in range(len(whole) - n - 1, -1, -1)
            if whole[i : i + n] == text[len(text) - n :]
        ]
        own = brute_force(text, 4, n, 4) if len(text) >= n else ()
        inside = any(text[i : i + n] == text[-n:] for i in range(len(text) - n))
        return [list(own), *found] if inside else found

    expected: list[int] = []
    for n in range(min(ngram, len(text)), 0, -1):
        if found := sources(n):
            expected = found[0]
            break
    assert list(proposal.tokens) == expected


def test_a_shift_forgets_the_text_but_not_the_earlier_ones() -> None:
    drafter = PromptLookup(DraftLength(2), 2, 1, [[1, 2, 3, 4]])
    drafter.prefill([], 0)
    drafter.propose([7, 8, 7], 5)
    drafter.rewind(0)
    assert drafter.propose([8, 7], 5).tokens == ()
    assert drafter.propose([8, 7, 2], 5).tokens == (3, 4)


def test_branches_offer_what_followed_other_occurrences() -> None:
    text = [1, 2, 3, 9, 1, 2, 4, 9, 1, 2]
    one = PromptLookup(DraftLength(2), 2, 1).propose(text, 9)
    two = PromptLookup(DraftLength(2), 2, 2).propose(text, 9)
    assert one.tokens == (4, 9)
    paths = {(two.tokens[i], p) for i, p in enumerate(two.parents) if p == -1}
    assert {token for token, _ in paths} == {4, 3}
    assert len(two.tokens) == 4
