"""Suffix decoding (arXiv 2411.04975): what followed all occurrences of the longest ending that the
text had before, as a tree with the frequencies of its branches.
"""

from bisect import bisect
from collections.abc import Sequence
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
    (0.06, 0.11, 0.3, 0.7, 0.23),
    (0.2, 0.4, 0.6, 0.77, 0.56),
    (0.25, 0.3, 0.6, 0.82, 0.66),
    (0.4, 0.44, 0.7, 0.9, 0.84),
    (0.4, 0.44, 0.7, 0.92, 0.85),
    (0.5, 0.47, 0.7, 0.97, 0.87),
    (0.5, 0.5, 0.8, 0.98, 0.94),
    (0.6, 0.6, 0.9, 0.99, 0.94),
)

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

    occurrences, longest = 24, LENGTHS[-1]

    def __init__(
        self, draft_length: DraftLength, *, chain: bool, earlier: Sequence[Sequence[int]] = ()
    ) -> None:
        """`chain`: the target verifies no trees, so only the most probable tokens are proposed."""
        super().__init__(draft_length, NGRAM, self.occurrences, earlier)
        self._chain = chain

    @staticmethod
    def prior() -> Sequence[float]:
        return [chance for line in PRIOR for chance in line]

    def _tree(self, depth: int) -> list[Guess]:
        matches = [Match(n, self._continuation(start, depth)) for start, n in self._matches()]
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
        count, left = sum(map(len, behind.values())), reached
        kinds = {
            token: kind_of(max(m.length for m in agreeing) + len(path), len(agreeing), count)
            for token, agreeing in behind.items()
        }
        best = sorted(kinds, key=lambda token: self._estimates[kinds[token]], reverse=True)
        for token in best[:1] if self._chain else best:
            chance = self._estimates[kinds[token]] * left
            if chance < LEAST:
                break
            left -= chance
            guesses.append(Guess((*path, token), chance, kinds[token], "suffix"))
            self._grow((*path, token), chance, behind[token], guesses)


def kind_of(longest: int, agreeing: int, count: int) -> int:
    """The class of a guess, by its longest match and by how many of the matches agree with it."""
    share = len(SHARES) + 1 if count == 1 else bisect(SHARES, agreeing / count)
    return bisect(LENGTHS, longest) * len(PRIOR[0]) + share
