"""How often a drafter's guesses are accepted: prior beliefs, corrected by what happens."""

from bisect import bisect
from collections.abc import Sequence

from backend.decoding.sampling import Pair
from backend.drafters.draft_length import DraftLength
from backend.drafters.guesses import Guess, Path, verified
from backend.types import Outcome

#: Bounds of the distance between a draft's two best scores, by which its guesses are sorted.
GAPS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

#: How often a draft's best token was right, by the gap's class, and how often its second best:
#: measured with the built-in model's trained head on conversations that it was not trained on.
PRIOR = (0.22, 0.27, 0.35, 0.47, 0.59, 0.72, 0.87, 0.97, 0.99)
SECOND = (0.2, 0.19, 0.15, 0.12, 0.09, 0.06, 0.03, 0.01, 0.01)

#: Of the rounds in which drafting does not seem to pay, one in so many drafts all the same, to see
#: whether that has changed.
PROBE_EVERY = 16


class AcceptanceEstimates:
    """How often guesses of each kind were right.

    `prior` is the chance of each kind before anything was seen; it weighs as much as `weight`
    observations.
    """

    def __init__(self, prior: Sequence[float], weight: float = 8.0) -> None:
        self._right = [chance * weight for chance in prior]
        self._tried = [weight] * len(prior)

    def __getitem__(self, kind: int) -> float:
        return self._right[kind] / self._tried[kind]

    def __len__(self) -> int:
        return len(self._tried)

    def learn(self, kind: int, *, right: bool) -> None:
        self._tried[kind] += 1
        self._right[kind] += right


class Calibration:
    """Maps a draft's gaps to the chance that the target agrees; learns from each round."""

    def __init__(self) -> None:
        self._estimates = AcceptanceEstimates((*PRIOR, *SECOND))
        self._first = AcceptanceEstimates((0.5,))
        self._declined = 0  # rounds in a row in which drafting did not seem to pay
        self._path: Path = ()
        self._guesses: list[Guess] = []
        self.path_probability = 1.0  # of the chain of best tokens so far

    @property
    def first_token_acceptance(self) -> float:
        """How often the best first token of a round was right lately."""
        return self._first[0]

    def begin(self, draft_length: DraftLength) -> bool:
        """Begin a round without guesses; whether to draft in it."""
        self._path, self._guesses, self.path_probability = (), [], 1.0
        pays = draft_length.extends(0, self.first_token_acceptance)
        self._declined = 0 if pays else self._declined + 1
        return self._declined % PROBE_EVERY == 0

    def add(self, pair: Pair, *, second: bool) -> None:
        """Take the round's next token, and with `second` the runner-up as a guess beside it."""
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
        """See which of the round's guesses were right, verified by a pass or not."""
        if outcome.proposal.origin != "drafted" or not self._path:
            return
        for kind, right in verified({g.path: g.kind for g in self._guesses}, outcome):
            self._estimates.learn(kind, right=right)
        self._first.learn(0, right=self._path[0] == outcome.tokens[0])
        self._path = ()
