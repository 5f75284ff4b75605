"""Suffix decoding (arXiv 2411.04975): what followed all occurrences of the longest ending that the
text had before, as a tree with the frequencies of its branches.
"""

from bisect import bisect
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from backend.drafters.draft_length import DraftLength
from backend.drafters.guesses import Guess, Path
from backend.drafters.prompt_lookup import PromptLookup

#: The shortest endings that are indexed; the match is then followed as far back as it goes.
NGRAM = 2

#: Classes of guesses: by the length of the longest match behind a guess, and by the share of the
#: matches that agree with it, one match alone being a class of its own.
LENGTHS = (2, 3, 4, 6, 8, 12, 16)
SHARES = (0.34, 0.67, 1.0)

#: How often guesses of a class were right, a line for each class of lengths; of shares below a
#: third, below two thirds, below 1, all of several, and one match alone.
PRIOR = (
    (0.06, 0.16, 0.3, 0.7, 0.24),
    (0.13, 0.28, 0.6, 0.8, 0.57),
    (0.17, 0.26, 0.6, 0.8, 0.68),
    (0.15, 0.32, 0.7, 0.9, 0.79),
    (0.15, 0.33, 0.7, 0.93, 0.79),
    (0.2, 0.36, 0.7, 0.96, 0.85),
    (0.2, 0.36, 0.8, 0.98, 0.92),
    (0.2, 0.4, 0.9, 0.99, 0.94),
)

#: A match promises at most so many tokens more than it is long: most matches of a few tokens are
#: coincidences, and what is far behind them was right half as often as expected.
MORE = 3

#: Guesses that are less probable than this are left out, and whatever is behind them.
LEAST = 0.02


class Match(NamedTuple):
    """An earlier occurrence of the text's ending: how many tokens are the same, and what follows
    them.
    """

    length: int
    continuation: Sequence[int]


class SuffixDecoding(PromptLookup):
    """Prompt lookup that weighs all remembered occurrences: at each place of the tree, a token is
    as probable as earlier guesses with such a match and such a share of the matches were right.
    """

    by = "suffix"
    occurrences, longest = 24, LENGTHS[-1]

    def __init__(self, draft_length: DraftLength, *, chain: bool) -> None:
        """`chain`: the target verifies no trees, so only the most probable tokens are proposed."""
        super().__init__(draft_length, NGRAM, self.occurrences)
        self._chain = chain

    @staticmethod
    def prior() -> Sequence[float]:
        return [chance for line in PRIOR for chance in line]

    def _tree(self, depth: int) -> list[Guess]:
        matches = [
            Match(n, self._continuation(start, min(depth, n + MORE)))
            for start, n in self._matches()
        ]
        guesses: list[Guess] = []
        self._grow((), 1.0, matches, guesses)
        guesses.sort(key=lambda guess: (-guess.path_probability, len(guess.path)))
        return guesses[: self._draft_length.most]

    def _grow(
        self, path: Path, reached: float, matches: Sequence[Match], guesses: list[Guess]
    ) -> None:
        """Add to `guesses` what follows a path that is right with the chance `reached`."""
        behind: dict[int, list[Match]] = {}
        for match in matches:
            if len(match.continuation) > len(path):
                behind.setdefault(match.continuation[len(path)], []).append(match)
        lengths = {token: [match.length for match in found] for token, found in behind.items()}
        kinds = {token: _kind(token, lengths, len(path)) for token in lengths}
        best = sorted(kinds, key=lambda token: self._estimates[kinds[token]], reverse=True)
        left = reached
        for token in best[:1] if self._chain else best:
            chance = self._estimates[kinds[token]] * left
            if chance < LEAST:
                break
            left -= chance
            guesses.append(Guess((*path, token), chance, kinds[token], self.by))
            self._grow((*path, token), chance, behind[token], guesses)


def _kind(token: int, lengths: Mapping[int, Sequence[int]], depth: int) -> int:
    """The class of the guess that `token` comes next, so deep in the tree. `lengths`: those of the
    matches by what they say comes next. Shorter matches than the token's longest do not count.
    """
    longest = max(lengths[token])
    agreeing, count = (
        sum(length >= longest for length in some)
        for some in (lengths[token], chain.from_iterable(lengths.values()))
    )
    return kind_of(longest + depth, agreeing, count)


def kind_of(longest: int, agreeing: int, count: int) -> int:
    """The class of a guess: its longest match, and how many of `count` such matches agree."""
    share = len(SHARES) + 1 if count == 1 else bisect(SHARES, agreeing / count)
    return bisect(LENGTHS, longest) * len(PRIOR[0]) + share
