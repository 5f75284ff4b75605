"""Two drafters' guesses in one tree."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.drafters.guesses import Guess, Path, joined


@st.composite
def trees(draw: st.DrawFn) -> list[Guess]:
    """Guesses over few tokens, so that two trees often share paths."""
    found: dict[Path, Guess] = {}
    for _ in range(draw(st.integers(0, 6))):
        before = draw(st.sampled_from([(), *found]))
        path = (*before, draw(st.integers(0, 3)))
        siblings = sum(
            guess.path_probability for guess in found.values() if guess.path[:-1] == before
        )
        reached = found[before].path_probability if before else 1.0
        share = draw(st.floats(0.05, 0.95))
        if path not in found:
            found[path] = Guess(path, max(0.0, reached - siblings) * share, len(path))
    return list(found.values())


def chances(guesses: list[Guess]) -> dict[Path, float]:
    return {guess.path: guess.path_probability for guess in guesses}


@given(trees(), trees())
def test_a_joined_tree_holds_every_guess_and_is_one_of_chances(
    these: list[Guess], those: list[Guess]
) -> None:
    """Parents come with their children and are no less probable than all of them together."""
    found = chances(joined(these, those))
    assert set(found) == set(chances(these)) | set(chances(those))
    below: defaultdict[Path, float] = defaultdict(float)
    for path, chance in found.items():
        assert 0 <= chance <= 1
        below[path[:-1]] += chance
    for path, chance in below.items():
        assert chance <= (found[path] if path else 1.0) + 1e-9


@given(trees())
def test_joining_nothing_changes_nothing(guesses: list[Guess]) -> None:
    for found in (joined(guesses, []), joined([], guesses)):
        assert chances(found) == pytest.approx(chances(guesses))


def test_what_both_guess_is_likelier_and_what_they_disagree_on_is_less_likely() -> None:
    lookup = [Guess((1,), 0.6, 2)]
    assert chances(joined(lookup, [Guess((1,), 0.5, 0)])) == {(1,): pytest.approx(0.8)}
    apart = chances(joined(lookup, [Guess((2,), 0.5, 0)]))
    # Of the worlds in which not both are right: 0.6 * 0.5, 0.4 * 0.5 and 0.4 * 0.5.
    assert apart == {(1,): pytest.approx(3 / 7), (2,): pytest.approx(2 / 7)}


def test_a_guess_of_both_is_by_both() -> None:
    these = [Guess((1,), 0.6, 2, "one"), Guess((1, 2), 0.3, 2, "one")]
    those = [Guess((1,), 0.5, 0, "other"), Guess((3,), 0.2, 0, "other")]
    by = {guess.path: guess.by for guess in joined(these, those)}
    assert by == {(1,): "one and other", (1, 2): "one", (3,): "other"}
