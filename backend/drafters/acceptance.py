"""How sure a draft is of its tokens, and how often that was justified."""

from bisect import bisect

from backend.decoding.sampling import Pair
from backend.drafters.draft_length import AcceptanceEstimates, DraftLength
from backend.drafters.guesses import Guess, Path, judged
from backend.types import Outcome

#: Bounds of the distance between a draft's two best scores, by which its guesses are sorted.
GAPS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

#: How often a draft's best token was right, by the gap's class, and how often its second best:
#: measured with the built-in model's trained head on conversations that it was not trained on.
PRIOR = (0.22, 0.27, 0.35, 0.47, 0.59, 0.72, 0.87, 0.97, 0.99)
SECOND = (0.2, 0.19, 0.15, 0.12, 0.09, 0.06, 0.03, 0.01, 0.01)

#: Of the rounds in which a draft does not seem worth asking, one in so many asks it all the same.
PATIENCE = 16


class Calibration:
    """Tells from a draft's gaps the chance that the target agrees; learns from each round."""

    def __init__(self) -> None:
        self._estimates = AcceptanceEstimates((*PRIOR, *SECOND))
        self._first = AcceptanceEstimates((0.5,))
        self._idle = 0  # rounds in which it was not worth asking, in a row
        self._path: Path = ()
        self._guesses: list[Guess] = []
        self.path_probability = 1.0  # of the chain of best tokens so far

    @property
    def usual(self) -> float:
        """How often the best first token of a round was right."""
        return self._first[0]

    def asks(self, draft_length: DraftLength) -> bool:
        """Whether to ask the draft at all; now and then it is asked to see if things changed."""
        self._path, self._guesses, self.path_probability = (), [], 1.0
        self._idle = 0 if draft_length.extends(0, self.usual) else self._idle + 1
        return self._idle % PATIENCE == 0

    def add(self, pair: Pair, *, second: bool) -> None:
        """The round's next token, and with `second` the runner-up as a guess beside it."""
        kind = bisect(GAPS, pair.gap)
        if second:
            beside = kind + len(PRIOR)
            chance = self.path_probability * self._estimates[beside]
            self._guesses.append(Guess((*self._path, pair.second), chance, beside))
        self.path_probability *= self._estimates[kind]
        self._path = (*self._path, pair.token)
        self._guesses.append(Guess(self._path, self.path_probability, kind))

    @property
    def guesses(self) -> list[Guess]:
        return self._guesses

    def learn(self, outcome: Outcome) -> None:
        if outcome.proposal.origin != "drafted" or not self._path:
            return
        for kind, right in judged({g.path: g.kind for g in self._guesses}, outcome):
            self._estimates.learn(kind, right=right)
        self._first.learn(0, right=self._path[0] == outcome.tokens[0])
        self._path = ()
