"""Prompt lookup: what followed earlier occurrences of the text's own ending is proposed again.

The idea of prompt lookup decoding (Saxena 2023) and of LLMA (arXiv 2304.04487), over prompt and
output.
"""

from collections.abc import Sequence

from backend.decoding.drafter import UNDECIDED, Drafter
from backend.drafters.acceptance import AcceptanceEstimates
from backend.drafters.draft_length import DraftLength
from backend.drafters.guesses import Guess, Path, proposal_of, verified
from backend.types import Outcome, Proposal

#: How often the next token was that of the last occurrence, by the length of the match (1, 2, ...,
#: 8 and more): measured on answers that the built-in model wrote to questions of its own.
PRIOR = (0.21, 0.5, 0.6, 0.7, 0.74, 0.78, 0.8, 0.94)

#: Occurrences of an n-gram that are remembered, the latest ones.
OCCURRENCES = 4


class PromptLookup(Drafter):
    """Matches the longest suffix of at most `ngram` tokens at its latest earlier occurrence and
    proposes the tokens that came after it; with `branches` > 1 also what came after others, where
    that differs. A continuation that runs into the present goes on with itself, so a loop is
    proposed as a loop.
    """

    #: What its guesses are by; occurrences of an n-gram that are remembered, the latest ones; and
    #: the longest match that is told from a shorter one.
    by = "prompt lookup"
    occurrences, longest = OCCURRENCES, len(PRIOR)

    def __init__(
        self,
        draft_length: DraftLength,
        ngram: int,
        branches: int = 1,
        declined: tuple[str, ...] = (),
    ) -> None:
        """`declined` is what was wanted beside it and could not be had."""
        self._declined = declined
        self.decision = UNDECIDED.beside(declined)
        self._draft_length = draft_length
        self._ngram = ngram
        self._branches = branches
        self._estimates = AcceptanceEstimates(self.prior())
        self._text: list[int] = []
        self._after: dict[tuple[int, ...], list[int]] = {}
        self._indexed = 0
        self.guesses: Sequence[Guess] = ()  # of the last round
        self.first_token_acceptance = 0.0  # expected of the last proposal

    @staticmethod
    def prior() -> Sequence[float]:
        """How often guesses of each kind are right, before anything is known of this text."""
        return PRIOR

    def rewind(self, length: int) -> None:
        if length < self._indexed:
            self._after.clear()
            self._indexed = 0

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        self._draft_length.begin(len(context))
        self._text = list(context)
        self._index_up_to(self._text)
        self.guesses = self._tree(min(self._draft_length.most, budget)) if budget > 0 else []
        self.first_token_acceptance = max(
            (guess.path_probability for guess in self.guesses), default=0.0
        )
        return proposal_of(self.guesses, self._draft_length)

    def observe(self, outcome: Outcome) -> None:
        self._draft_length.learn(outcome)
        self.learn(outcome)

    def conclude(self) -> None:
        self.decision = self._draft_length.summary().beside(self._declined)

    def learn(self, outcome: Outcome) -> None:
        """See which of the last guesses were right, verified or not."""
        for kind, right in verified({g.path: g.kind for g in self.guesses}, outcome):
            self._estimates.learn(kind, right=right)
        self.guesses = ()

    def _tree(self, depth: int) -> list[Guess]:
        """What the best matches promise, merged at common beginnings."""
        nodes: dict[Path, Guess] = {}
        unclaimed: dict[Path, float] = {}  # chance that none of the children is right
        branches = 0
        for start, matched in self._matches():
            path: Path = ()
            path_probability, new = 1.0, False
            for token in self._continuation(start, depth):
                kind = min(matched + len(path), len(self._estimates)) - 1
                before, path = path, (*path, token)
                if path not in nodes:
                    left = unclaimed.get(before, 1.0)
                    chance = self._estimates[kind] * left
                    unclaimed[before] = left - chance
                    chance *= path_probability
                    nodes[path] = Guess(path, chance, kind, self.by)
                    new = True
                path_probability = nodes[path].path_probability
            branches += new
            if branches == self._branches:
                break
        return list(nodes.values())

    def _matches(self) -> list[tuple[int, int]]:
        """Where the text's ending occurred before: the index behind it, and the match's length.

        Longer n-grams first, then later occurrences.
        """
        text = self._text
        matches: dict[int, int] = {}
        for n in range(min(self._ngram, len(text)), 0, -1):
            for start in reversed(self._after.get(tuple(text[-n:]), ())):
                if start not in matches:
                    matches[start] = self._matched(start, n)
            if len(matches) >= self._branches:
                break
        return list(matches.items())

    def _matched(self, start: int, n: int) -> int:
        """How many tokens before `start` equal the text's last ones, `n` at least, `longest` at
        most.
        """
        text = self._text
        longest = min(self.longest, start)
        while n < longest and text[start - n - 1] == text[-n - 1]:
            n += 1
        return n

    def _continuation(self, start: int, depth: int) -> list[int]:
        """`depth` tokens from index `start` on."""
        tokens = self._text[start : start + depth]
        period = len(self._text) - start
        while len(tokens) < depth:
            tokens.append(tokens[len(tokens) - period])
        return tokens

    def _index_up_to(self, text: Sequence[int]) -> None:
        """Index the n-grams before each token not seen yet; the text's own ending stays out."""
        for end in range(max(self._indexed, 1), len(text)):
            for n in range(1, min(self._ngram, end) + 1):
                places = self._after.setdefault(tuple(text[end - n : end]), [])
                places.append(end)
                if len(places) > self.occurrences:
                    del places[0]
        self._indexed = max(len(text), self._indexed)
