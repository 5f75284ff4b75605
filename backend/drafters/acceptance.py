"""How often a drafter's guesses are accepted: prior beliefs, corrected by what happens."""

from bisect import bisect
from collections.abc import Sequence
from dataclasses import replace

from backend.decoding.sampling import Pair
from backend.drafters.draft_length import DraftLength
from backend.drafters.guesses import Guess, Path, paths_of, proposal_of, verified
from backend.types import Draw, Outcome, Proposal

#: Bounds of the distance between a draft's two best scores, by which its guesses are sorted.
GAPS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

#: How often a draft's best token was right, by the gap's class, and how often its second best:
#: measured with the built-in model's trained head on 40 questions of Spec-Bench, and, of the second
#: best, before its fourth training on conversations that it was not trained on.
PRIOR = (0.24, 0.3, 0.37, 0.5, 0.61, 0.76, 0.9, 0.96, 0.99)
SECOND = (0.2, 0.19, 0.15, 0.12, 0.09, 0.06, 0.03, 0.01, 0.01)

#: The same for guesses that were drawn at random, by the largest probability among those that they
#: were drawn from: measured with the head at temperature 0.7. A second one, drawn without
#: replacement, was right as often (0.105) as the most probable one left would have been (0.107).
LARGEST = (0.15, 0.25, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)
DRAWN_PRIOR = (0.15, 0.19, 0.26, 0.35, 0.44, 0.57, 0.6, 0.69, 0.91)
DRAWN_SECOND = (0.05, 0.08, 0.1, 0.12, 0.13, 0.12, 0.12, 0.1, 0.04)

#: The chances with which a text begins weigh as much as so many observations: priors, and what an
#: earlier text has taught. The latter go back to the priors by this share with each text, because
#: a text that was hard to guess says little about those that follow.
PRIOR_WEIGHT, RECALLED, FORGOTTEN = 8.0, 4.0, 0.25

#: So many observations count in an estimate: of what a draft's scores are worth, and of how often
#: its first guess was right lately. What is older hardly counts. In simulated races whose text
#: turned from easy to hard every 96 tokens, the speed-up was 1.07 with these, 0.93 without.
MEMORY, LATELY = 64, 16


class AcceptanceEstimates:
    """How often guesses of each kind were right lately.

    `prior` is the chance of each kind before anything was seen; it weighs as much as `weight`
    observations. Once an estimate rests on `memory` of them, each new one makes the older ones
    count a little less: texts change their nature on the way.
    """

    def __init__(
        self, prior: Sequence[float], weight: float = PRIOR_WEIGHT, memory: float = MEMORY
    ) -> None:
        self._prior = tuple(prior)
        self._right = [chance * weight for chance in prior]
        self._tried = [weight] * len(prior)
        self._memory = memory

    def __getitem__(self, kind: int) -> float:
        return self._right[kind] / self._tried[kind]

    def __len__(self) -> int:
        return len(self._tried)

    def recall(self, before: "AcceptanceEstimates") -> None:
        """Begin with what another text has told."""
        self._tried = [RECALLED] * len(self)
        for kind, chance in enumerate(self._prior):
            told = before[kind] + FORGOTTEN * (chance - before[kind])
            self._right[kind] = told * RECALLED

    def learn(self, kind: int, *, right: bool) -> None:
        fade = min(1.0, (self._memory - 1) / self._tried[kind])
        self._tried[kind] = fade * self._tried[kind] + 1
        self._right[kind] = fade * self._right[kind] + right


class Calibration:
    """Maps what a draft knows of its guesses to the chance that the target accepts them; learns
    from each round.
    """

    def __init__(self, by: str = "", before: "Calibration | None" = None) -> None:
        """`by`: what the draft is called where its guesses are shown. `before`: what is known of it
        by earlier texts.
        """
        self._by = by
        self.estimates = AcceptanceEstimates((*PRIOR, *SECOND, *DRAWN_PRIOR, *DRAWN_SECOND))
        self.first = AcceptanceEstimates((0.5,), memory=LATELY)
        if before is not None:
            self.estimates.recall(before.estimates)
            self.first.recall(before.first)
        self._declined = 0  # rounds in a row in which drafting did not seem to pay
        self.path: Path = ()  # the round's chain of best tokens so far
        self.path_probability = 1.0
        self.guesses: list[Guess] = []  # those of the round
        self._draws: dict[Path, Draw] = {}

    @property
    def first_token_acceptance(self) -> float:
        """How often the best first token of a round was right lately."""
        return self.first[0]

    def begin(self, draft_length: DraftLength) -> bool:
        """Begin a round without guesses; whether to draft in it."""
        self.path, self.guesses, self._draws, self.path_probability = (), [], {}, 1.0
        pays = draft_length.extends(0, self.first_token_acceptance)
        drafts = pays or self._declined + 1 >= draft_length.pause
        self._declined = 0 if drafts else self._declined + 1
        return drafts

    def add(self, pair: Pair, *, second: bool) -> None:
        """Take the round's next token, and with `second` the runner-up as a guess beside it."""
        if pair.draw is None:
            kind = bisect(GAPS, pair.gap)
        else:
            largest = float(pair.draw.probabilities.max())
            kind = len(PRIOR) + len(SECOND) + bisect(LARGEST, largest)
            self._draws[self.path] = pair.draw
        if second and pair.second >= 0:
            beside = kind + len(PRIOR)
            chance = self.path_probability * self.estimates[beside]
            self.guesses.append(Guess((*self.path, pair.second), chance, beside, self._by))
        self.path_probability *= self.estimates[kind]
        self.path = (*self.path, pair.token)
        self.guesses.append(Guess(self.path, self.path_probability, kind, self._by))

    def proposal(self, draft_length: DraftLength, calls: int) -> Proposal:
        """Propose those of the round's guesses that pay; of a chain that was drawn, all of it.

        Leaving out a token for what it is would be drawing from another distribution than the one
        that verification is told of. That a second one is tried or not may depend on the first.
        """
        if not self._draws:
            return proposal_of(self.guesses, draft_length, calls)
        chain = frozenset(self.path[: depth + 1] for depth in range(len(self.path)))
        made = proposal_of(self.guesses, draft_length, calls, chain)
        tried = set(paths_of(made))
        self.guesses = [guess for guess in self.guesses if guess.path in tried]
        draws = {path: _tried(draw, path, tried) for path, draw in self._draws.items()}
        return replace(made, draws=draws)

    def learn(self, outcome: Outcome) -> None:
        """See which of the round's guesses were right, verified by a pass or not; of those that
        were drawn, only what was verified can tell.
        """
        if not (outcome.decided and self.path):
            return
        for kind, right in verified({g.path: g.kind for g in self.guesses}, outcome):
            self.estimates.learn(kind, right=right)
        self.first.learn(0, right=self.path[0] == outcome.decided[0])
        self.path = ()


class Experience:
    """What texts have taught of a loaded draft. Mutable: each text goes on from the one begun
    before it. A draft that does not pay then need not be tried again at the beginning of each.
    """

    def __init__(self) -> None:
        self._last: Calibration | None = None

    def begin(self, by: str) -> Calibration:
        """The calibration of a new text."""
        self._last = Calibration(by, self._last)
        return self._last


def _tried(draw: Draw, path: Path, tried: set[Path]) -> Draw:
    """The draw with those alone of its tokens that are proposed behind `path`."""
    indices = tuple(i for i in draw.indices if (*path, draw.token(i)) in tried)
    return replace(draw, indices=indices)
