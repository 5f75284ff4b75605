"""How sure a draft is of its token, and how often that was justified."""

from bisect import bisect
from collections.abc import Sequence

from backend.drafters.pace import Chances, Pace
from backend.types import Outcome

#: Bounds of the distance between a draft's two best scores, by which its guesses are sorted.
GAPS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

#: How often a draft was right, by the gap's class, before anything is known of this one.
PRIOR = (0.2, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)

#: Of the rounds in which a draft does not seem worth asking, one in so many asks it all the same.
PATIENCE = 16


class Confidence:
    """Tells from a draft's gap the chance that the target agrees; learns from each round."""

    def __init__(self) -> None:
        self._chances = Chances(PRIOR)
        self._first = Chances((0.5,))
        self._kinds: list[int] = []
        self._idle = 0  # rounds in which it was not worth asking, in a row

    @property
    def usual(self) -> float:
        """How often the first token of a round was right."""
        return self._first[0]

    def asks(self, pace: Pace) -> bool:
        """Whether to ask the draft at all; now and then it is asked to see if things changed."""
        self._idle = 0 if pace.goes_on(0, self.usual) else self._idle + 1
        return self._idle % PATIENCE == 0

    def begin(self) -> None:
        """A new round."""
        self._kinds = []

    def chance(self, gap: float) -> float:
        """The chance of the round's next token, whose two best scores lie `gap` apart."""
        kind = bisect(GAPS, gap)
        self._kinds.append(kind)
        return self._chances[kind]

    def learn(self, drafted: Sequence[int], outcome: Outcome) -> None:
        """The round had drafted these tokens, a chain."""
        if outcome.proposal.origin != "drafted":
            return
        pairs = zip(drafted, outcome.tokens, self._kinds, strict=False)
        for index, (guess, token, kind) in enumerate(pairs):
            self._chances.learn(kind, right=guess == token)
            if index == 0:
                self._first.learn(0, right=guess == token)
            if guess != token:
                return
