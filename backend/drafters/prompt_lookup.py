"""Prompt lookup: what followed earlier occurrences of the text's own ending is proposed again.

The idea of prompt lookup decoding (Saxena 2023) and of LLMA (arXiv 2304.04487), over prompt and
output.
"""

from collections.abc import Sequence

from backend.decoding.seams import UNDECIDED, Drafter
from backend.drafters.draft_length import Acceptance, DraftLength, Guess, Path
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

    by = "prompt lookup"  # where its guesses are shown

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
        self._acceptance = Acceptance(PRIOR)
        self._text: list[int] = []
        self._after: dict[tuple[int, ...], list[int]] = {}
        self._indexed = 0
        self.guesses: Sequence[Guess] = ()  # of the last round

    def prefill(self, context: Sequence[int], computed: int) -> None:
        self._extend(context[:computed])

    def rewind(self, length: int) -> None:
        del self._text[length:]
        if length < self._indexed:
            self._after, self._indexed = {}, 0

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        self._draft_length.begin(len(context))
        self._extend(context)
        self.guesses = self._tree(min(self._draft_length.most, budget)) if budget > 0 else ()
        return self._draft_length.proposal(self.guesses)

    def observe(self, outcome: Outcome) -> None:
        self._draft_length.learn(outcome)
        self.learn(outcome)

    def conclude(self) -> None:
        self.decision = self._draft_length.summary().beside(self._declined)

    def learn(self, outcome: Outcome) -> None:
        """See which of the last guesses were right, verified or not."""
        self._acceptance.learn_all(self.guesses, outcome.decided)
        self.guesses = ()
        unwritten = outcome.proposal.forced - len(outcome.tokens)
        if unwritten > 0:  # the text ended within what a grammar forces, and may go on otherwise
            self.rewind(len(self._text) - unwritten)

    def _tree(self, depth: int) -> Sequence[Guess]:
        """What the best matches promise, merged at common beginnings."""
        nodes: dict[Path, Guess] = {}
        unclaimed: dict[Path, float] = {}  # chance that none of the children is right
        branches = 0
        for start, matched in self._matches():
            path: Path = ()
            reached, new = 1.0, False
            for token in self._continuation(start, depth):
                kind = min(matched + len(path), len(PRIOR)) - 1
                before, path = path, (*path, token)
                if path not in nodes:
                    left = unclaimed.get(before, 1.0)
                    chance = self._acceptance[kind] * left
                    unclaimed[before] = left - chance
                    nodes[path] = Guess(path, reached * chance, kind, self.by)
                    new = True
                reached = nodes[path].chance
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
        """How many tokens before `start` equal the text's last ones, `n` at least, as many as there
        are kinds at most.
        """
        text = self._text
        while n < min(len(PRIOR), start) and text[start - n - 1] == text[-n - 1]:
            n += 1
        return n

    def _continuation(self, start: int, depth: int) -> list[int]:
        """`depth` tokens from index `start` on."""
        tokens = self._text[start : start + depth]
        period = len(self._text) - start
        while len(tokens) < depth:
            tokens.append(tokens[len(tokens) - period])
        return tokens

    def _extend(self, context: Sequence[int]) -> None:
        """Take what the context has more than before, and index the n-grams before each token of
        it; the text's own ending stays out. No round copies the whole text.
        """
        self._text += context[len(self._text) :]
        for end in range(max(self._indexed, 1), len(self._text)):
            for n in range(1, min(self._ngram, end) + 1):
                places = self._after.setdefault(tuple(self._text[end - n : end]), [])
                places.append(end)
                if len(places) > OCCURRENCES:
                    del places[0]
        self._indexed = len(self._text)
