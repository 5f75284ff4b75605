"""Prompt lookup: what followed the last earlier occurrence of the text's ending is proposed again.

The idea of prompt lookup decoding (Saxena 2023) and of LLMA (arXiv 2304.04487), over prompt and
output.
"""

from collections.abc import Iterator, Sequence

from backend.decoding.seams import UNDECIDED, Decision, Drafter
from backend.drafters.draft_length import Acceptance, DraftLength, Guess
from backend.types import Outcome, Proposal

#: How often the next token was that of the last occurrence, by the length of the match (1, 2, ...,
#: 8 and more): measured on answers that the built-in model wrote to questions of its own.
PRIOR = (0.21, 0.5, 0.6, 0.7, 0.74, 0.78, 0.8, 0.94)


class PromptLookup(Drafter):
    """Matches the longest suffix of at most `ngram` tokens at its latest earlier occurrence and
    proposes the tokens that came after it. A continuation that runs into the present goes on with
    itself, so a loop is proposed as a loop.
    """

    by = "prompt lookup"  # where its guesses are shown

    def __init__(
        self, draft_length: DraftLength, ngram: int, decision: Decision = UNDECIDED
    ) -> None:
        """`decision`: what was wanted beside it and declined."""
        self.decision = decision
        self._draft_length = draft_length
        self._ngram = ngram
        self._acceptance = Acceptance(PRIOR)
        self._text: list[int] = []
        self._after: dict[tuple[int, ...], list[int]] = {}  # the indices behind each n-gram
        self._indexed = 0
        self.guesses: Sequence[Guess] = ()  # of the last round

    def prefill(self, context: Sequence[int], computed: int) -> None:
        self._extend(context[:computed])

    def rewind(self, length: int) -> None:
        """See Drafter. Takes as long as what is forgotten took."""
        for _, ngram in self._ngrams(length, self._indexed):
            self._after[ngram].pop()
        self._indexed = min(self._indexed, length)
        del self._text[length:]

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        self._extend(context)
        self.guesses = self._chain(min(self._draft_length.most, budget))
        return self._draft_length.proposal(self.guesses)

    def observe(self, outcome: Outcome) -> None:
        self._draft_length.learn(outcome)
        self.learn(outcome)

    def conclude(self) -> None:
        self.decision = self._draft_length.summary().beside(self.decision.declined)

    def learn(self, outcome: Outcome) -> None:
        """See which of the last guesses were right, verified or not."""
        self._acceptance.learn_all(self.guesses, outcome.decided)
        self.guesses = ()

    def _chain(self, depth: int) -> list[Guess]:
        """What the best match promises, `depth` tokens."""
        text = self._text
        for n in range(min(self._ngram, len(text)), 0, -1):
            if places := self._after.get(tuple(text[-n:])):
                start = places[-1]
                break
        else:
            return []
        matched = n  # tokens before `start` that are the text's last ones
        while matched < min(len(PRIOR), start) and text[start - matched - 1] == text[-matched - 1]:
            matched += 1
        tokens, period = text[start : start + max(depth, 0)], len(text) - start
        while len(tokens) < depth:
            tokens.append(tokens[len(tokens) - period])
        chance, guesses = 1.0, list[Guess]()
        for i, _ in enumerate(tokens):
            kind = min(matched + i, len(PRIOR)) - 1
            chance *= self._acceptance[kind]
            guesses.append(Guess(tuple(tokens[: i + 1]), chance, kind, self.by))
        return guesses

    def _extend(self, context: Sequence[int]) -> None:
        """Take what the context has more than before, and index the n-grams before each token of
        it; the text's own ending stays out. No round copies the whole text.
        """
        self._text += context[len(self._text) :]
        for end, ngram in self._ngrams(self._indexed, len(self._text)):
            self._after.setdefault(ngram, []).append(end)
        self._indexed = len(self._text)

    def _ngrams(self, start: int, stop: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The n-grams that end before each of the indices, and the index."""
        for end in range(max(start, 1), stop):
            for n in range(1, min(self._ngram, end) + 1):
                yield end, tuple(self._text[end - n : end])
