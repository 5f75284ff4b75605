"""A strategy of one's own: what followed a token most often so far is drafted behind it again."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise

from backend.decoding.drafter import Drafter
from backend.strategies.declaration import Candidate, DrafterInputs, Strategy
from backend.strategies.equivalents import Lookup, Nothing
from backend.strategies.settings import NAMED_SIZE, Flag, WholeNumber
from backend.types import Outcome, Proposal


class Bigram(Drafter):
    def __init__(self, inputs: DrafterInputs) -> None:
        self._length, self._min_count = inputs.draft_length(), inputs.values["min_count"]
        self.rewind(0)

    def rewind(self, length: int) -> None:
        self._followers, self._counted = defaultdict[int, Counter[int]](Counter), 0

    def prefill(self, context: Sequence[int], computed: int) -> None:
        for token, follower in pairwise(context[max(self._counted - 1, 0) : computed]):
            self._followers[token][follower] += 1
        self._counted = computed

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        self._length.begin(len(context))
        self.prefill(context, len(context))
        path, chances = [context[-1]], [1.0]
        while len(path) <= min(self._length.most, budget):
            [(token, count)] = self._followers[path[-1]].most_common(1) or [(0, 0)]
            if count < self._min_count:
                break
            chances.append(chances[-1] * count / (1 + self._followers[path[-1]].total()))
            path.append(token)
        return Proposal.chain(path[1 : 1 + self._length.verify_count(chances[1:])])

    def observe(self, outcome: Outcome) -> None:
        self._length.learn(outcome)

    def conclude(self) -> None:
        self.decision = self._length.summary()


BIGRAM = Strategy(
    "bigram",
    "Bigram",
    "Speculation from pairs: what followed a token most often so far is drafted behind it.",
    settings=(
        Flag("auto", "Auto", "Draft only as much as pays here, at most K.", default=True),
        WholeNumber("k", "K", "Tokens drafted a round.", 4, 1, 16, fixes=NAMED_SIZE),
        WholeNumber("min_count", "Seen", "How often a pair must have been seen.", 1, 1, 9),
    ),
    build=Bigram,
    equivalent=lambda values, _target: Nothing("bigram drafts", Lookup(values["k"], 1)),
    verified=("", "k=10,min_count=2"),
    candidates=(Candidate("min_count=2", longest=8), Candidate()),
)
