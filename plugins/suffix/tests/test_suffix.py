"""Suffix decoding proposes what followed the text's ending before, weighed by how often it did, and
writes what KV reuse writes.
"""

from collections import Counter
from collections.abc import Sequence

import pytest
from decode_derby_suffix import LENGTHS, MORE, NGRAM, SuffixDecoding, kind_of
from hypothesis import given, settings
from hypothesis import strategies as st
from race_runs import board_after, events_of

from backend.drafters.draft_length import DraftLength
from backend.errors import DerbyError
from backend.export.production import LIBRARIES, snippet
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import parse_column
from backend.strategies.registry import strategies
from backend.types import ModelSpec, Outcome, Request, Sampling

TEXT = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def suffix(k: int = 8) -> SuffixDecoding:
    return SuffixDecoding(DraftLength(k))


def matched(text: Sequence[int], end: int) -> int:
    """How many tokens before `end` are the text's last ones."""
    n = 0
    while n < min(end, LENGTHS[-1]) and text[end - 1 - n] == text[len(text) - 1 - n]:
        n += 1
    return n


@settings(deadline=None)
@given(TEXT)
def test_what_it_proposes_followed_the_texts_ending_before(text: list[int]) -> None:
    """Each path continues an occurrence of the ending; there is none only where there is none."""
    places = {end: matched(text, end) for end in range(1, len(text)) if matched(text, end)}
    paths = suffix(32).propose(text, 4).paths
    assert bool(paths) == bool(places)
    looped = {end: (text[end:] * 5)[:4] for end in places}
    for path in paths:
        assert any(tuple(after[: len(path)]) == path for after in looped.values())


@settings(deadline=None)
@given(TEXT, TEXT, st.integers(1, 9))
def test_a_text_that_was_cut_is_looked_up_like_a_new_one(
    text: list[int], other: list[int], k: int
) -> None:
    drafter = suffix(k)
    drafter.prefill(text, len(text))
    drafter.rewind(len(text) // 2)
    new = [*text[: len(text) // 2], *other]
    assert drafter.propose(new, k) == suffix(k).propose(new, k)


def test_tokens_that_a_grammar_forced_are_forgotten_if_the_text_ended_among_them() -> None:
    drafter, text, forced = suffix(), [1, 2, 3, 1], (2, 3)
    proposal = drafter.propose([*text, *forced], 4).behind(forced)
    drafter.observe(Outcome((2,), 1, proposal, None))  # type: ignore[arg-type]
    other = [*text, 2, 9, 1, 2]
    assert drafter.propose(other, 4).tokens == suffix().propose(other, 4).tokens


@settings(deadline=None)
@given(TEXT, st.integers(1, 9), st.integers(0, 9))
def test_it_guesses_no_more_and_no_deeper_than_it_may(text: list[int], k: int, budget: int) -> None:
    paths = suffix(k).propose(text, budget).paths
    assert len(paths) <= k
    assert max(map(len, paths), default=0) <= min(k, budget)


@settings(deadline=None)
@given(TEXT, st.integers(1, 9))
def test_the_chances_of_alternatives_add_up_to_their_parents_at_most(
    text: list[int], k: int
) -> None:
    drafter = suffix(k)
    drafter.propose(text, k)
    reached = {guess[0]: guess[1] for guess in drafter.guesses} | {(): 1.0}
    behind = Counter[tuple[int, ...]]()
    for path, chance, *_ in drafter.guesses:
        behind[path[:-1]] += chance  # type: ignore[assignment]
    assert all(total <= reached[path] + 1e-9 for path, total in behind.items())


def test_the_longest_match_comes_first_and_the_more_frequent_of_equal_ones() -> None:
    long = [1, 2, 3, 7, 9, 2, 3, 5, 8, 2, 3, 5, 4, 1, 2, 3]
    assert suffix().propose(long, 1).tokens[0] == 7
    frequent = [2, 3, 7, 9, 2, 3, 5, 8, 2, 3, 5, 4, 2, 3]
    assert suffix().propose(frequent, 1).tokens[0] == 5


def test_a_short_match_does_not_promise_much() -> None:
    """A few equal tokens promised 16: mathematics, answers and summaries were slower than with
    prompt lookup's 8, because what was far behind such a match was right half as often as expected.
    """
    for length in (2, 6):
        ending = list(range(length))
        text = [*ending, *range(20, 60), *ending]
        assert len(suffix(16).propose(text, 16).tokens) == length + MORE


def test_a_class_of_guesses_that_proves_right_is_trusted_more() -> None:
    drafter, text = suffix(1), [1, 2, 5, 1, 2]
    kind = kind_of(5, {5: [NGRAM]}, 0)
    before = drafter.acceptance[kind]
    proposal = drafter.propose(text, 1)
    drafter.observe(Outcome((5, 6), 1, proposal, None))  # type: ignore[arg-type]
    assert drafter.acceptance[kind] > before
    proposal = drafter.propose(text, 1)
    drafter.observe(Outcome((6,), 0, proposal, None))  # type: ignore[arg-type]
    drafter.observe(Outcome((6,), 0, proposal, None))  # type: ignore[arg-type]
    assert drafter.acceptance[kind] < before


def test_it_is_installed() -> None:
    assert "suffix" in strategies()
    assert str(parse_column("suffix:k=9")) == "suffix:k=9"
    with pytest.raises(DerbyError, match="Suffix decoding: k is 99"):
        parse_column("suffix:k=99")


def test_production_names_it_for_vllm_alone() -> None:
    board = Scoreboard([parse_column("suffix:k=6")])
    code = {name: snippet(board, 0, Request("Hi"), ModelSpec(), name) for name in LIBRARIES}
    assert "'method': 'suffix', 'num_speculative_tokens': 6" in code["vLLM"].code
    assert "no suffix decoding" in code["transformers"].note
    assert not code["transformers"].code


@pytest.mark.parametrize(
    ("target", "tokens", "temperature"),
    [(ModelSpec("fake-loop", "fake"), 300, 0.0), (ModelSpec(), 48, 0.8)],
    ids=str,
)
def test_it_writes_what_kv_reuse_writes(target: ModelSpec, tokens: int, temperature: float) -> None:
    columns = tuple(map(parse_column, ("kv", "suffix", "suffix:k=8", "suffix:k=4,grammar=date")))
    prompt = "Repeat five times: one two three four."
    request = Request(prompt, tokens, Sampling(temperature, seed=1))
    plain, auto, fixed, dated = board_after(
        columns, events_of(Race(request, columns, target))
    ).scores
    assert [score.message for score in (plain, auto, fixed, dated)] == [""] * 4
    assert auto.tokens == fixed.tokens == plain.tokens
    assert fixed.accepted > 0
