"""Suffix decoding (arXiv 2411.04975) as a column of Decode Derby: what followed all occurrences of
the longest ending that the text had before, as a tree with the frequencies of its branches.
"""

from bisect import bisect
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from backend.decoding.seams import Drafter
from backend.drafters.draft_length import Acceptance, DraftLength, Guess, Path
from backend.strategies.declaration import DrafterInputs, Equivalent, Strategy
from backend.strategies.settings import AUTO, K_HELP, NAMED_SIZE, WholeNumber
from backend.types import Outcome, Proposal

#: The longest endings that are indexed, and occurrences of each that are remembered, the latest.
NGRAM, OCCURRENCES = 2, 24

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
    """An earlier occurrence of the text's ending: how many tokens agree, and what follows them."""

    length: int
    continuation: Sequence[int]


class SuffixDecoding(Drafter):
    """At each place of the tree, a token is as probable as earlier guesses with such a match and
    such a share of the matches were right.
    """

    def __init__(self, length: DraftLength) -> None:
        self._length = length
        self._text: list[int] = []
        self._after: dict[Path, list[int]] = {}  # the places behind each n-gram, ascending
        self.acceptance = Acceptance([chance for line in PRIOR for chance in line])
        self.guesses: list[Guess] = []  # of the last round

    def prefill(self, context: Sequence[int], computed: int) -> None:
        self._index(context[:computed])

    def rewind(self, length: int) -> None:
        if length < len(self._text):  # the index is made again of what is left
            self._text, self._after = [], {}

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        self._length.begin(len(context))
        self._index(context)
        self.guesses = []
        if (depth := min(self._length.most, budget)) > 0:
            self._grow((), 1.0, self._matches(depth))
            self.guesses.sort(key=lambda guess: (-guess.chance, len(guess.path)))
            del self.guesses[self._length.most :]
        return self._length.proposal(self.guesses)

    def observe(self, outcome: Outcome) -> None:
        """See which guesses were right, verified or not: behind a wrong one nothing is known."""
        self._length.learn(outcome)
        self.acceptance.learn_all(self.guesses, outcome.decided)
        if len(outcome.tokens) < outcome.proposal.forced:  # the text may go on otherwise
            self.rewind(0)

    def conclude(self) -> None:
        self.decision = self._length.summary()

    def _index(self, context: Sequence[int]) -> None:
        """Take in the text's new tokens; its own ending is not yet an occurrence of itself."""
        text, start = self._text, len(self._text)
        text += context[start:]
        for end in range(max(start, 1), len(text)):
            for n in range(1, min(NGRAM, end) + 1):
                places = self._after.setdefault(tuple(text[end - n : end]), [])
                places.append(end)
                del places[:-OCCURRENCES]

    def _matches(self, depth: int) -> list[Match]:
        """Those of longer indexed endings first, then the later ones, up to `depth` tokens each."""
        text, lengths = self._text, dict[int, int]()
        for n in range(min(NGRAM, len(text)), 0, -1):
            for end in reversed(self._after.get(tuple(text[-n:]), ())):
                length, most = n, min(LENGTHS[-1], end)
                while length < most and text[end - length - 1] == text[-length - 1]:
                    length += 1
                lengths.setdefault(end, length)
            if len(lengths) >= OCCURRENCES:
                break
        return [
            Match(length, self._continuation(end, min(depth, length + MORE)))
            for end, length in lengths.items()
        ]

    def _continuation(self, start: int, depth: int) -> list[int]:
        """The tokens from `start` on; one that runs into the present goes on with itself, so that a
        loop is proposed as a loop.
        """
        after = self._text[start : start + depth]
        return [after[i % len(after)] for i in range(depth)]

    def _grow(self, path: Path, reached: float, matches: Sequence[Match]) -> None:
        """Guess what follows a path that is right with the chance `reached`."""
        behind: dict[int, list[Match]] = {}
        for match in matches:
            if len(match.continuation) > len(path):
                behind.setdefault(match.continuation[len(path)], []).append(match)
        lengths = {token: [match.length for match in some] for token, some in behind.items()}
        kinds = {token: kind_of(token, lengths, len(path)) for token in lengths}
        best = sorted(kinds, key=lambda token: self.acceptance[kinds[token]], reverse=True)
        rest = reached
        for token in best:
            chance = self.acceptance[kinds[token]] * rest
            if chance < LEAST:
                break
            rest -= chance
            self.guesses.append(Guess((*path, token), chance, kinds[token], "suffix"))
            self._grow((*path, token), chance, behind[token])


def kind_of(token: int, lengths: Mapping[int, Sequence[int]], depth: int) -> int:
    """The class of the guess that `token` comes next, so deep in the tree. `lengths`: those of the
    matches by what they say comes next. Shorter matches than the token's longest do not count.
    """
    longest = max(lengths[token])
    agreeing = sum(length >= longest for length in lengths[token])
    count = sum(length >= longest for length in chain.from_iterable(lengths.values()))
    share = len(SHARES) + 1 if count == 1 else bisect(SHARES, agreeing / count)
    return bisect(LENGTHS, longest + depth) * len(PRIOR[0]) + share


def build(inputs: DrafterInputs) -> SuffixDecoding:
    return SuffixDecoding(inputs.draft_length())


SUFFIX = Strategy(
    "suffix",
    "Suffix decoding",
    "Finds the last words everywhere earlier in the text and guesses what came next most often.",
    settings=(
        AUTO,
        WholeNumber("k", "k", K_HELP, 16, 1, 32, fixes=NAMED_SIZE),
    ),
    gist="Copies earlier text",
    build=build,
    equivalent=lambda values: Equivalent(
        missing="suffix decoding",
        note="This needs the package arctic-inference.",
        only={
            "vLLM": {
                "speculative_config": {
                    "method": "suffix",
                    "num_speculative_tokens": values["k"],
                }
            }
        },
    ),
    verified=("", "k=8"),
    candidates=("",),
)
