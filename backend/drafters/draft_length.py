"""How much to draft in a round: a fixed number of tokens, or as many as pay.

A round that drafts d tokens costs T(1 + d) and the drafting, and yields 1 + the expected number
of accepted tokens. Whatever earns tokens for less than they cost on average pays: with t, the
seconds that a token has cost lately, the best round maximises t * yield - cost (the marginal rule
of renewal-reward processes).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from backend.costs import CONTEXT, Costs
from backend.decoding.seams import UNDECIDED, Decision
from backend.types import Outcome, Proposal

#: Rounds that the running averages of a token's cost and of a draft's call remember.
MEMORY = 30

#: Observations that a prior weighs as much as, and that an estimate of acceptance remembers: texts
#: change their nature on the way.
PRIOR_WEIGHT, REMEMBERED = 8.0, 64.0

#: Rounds in which a draft is not asked, over which its estimate goes back to the prior.
FORGOTTEN = 256.0

Path = tuple[int, ...]


class Guess(NamedTuple):
    """A drafted token. `path`: the tokens from the root's next to this one. `chance`: that all of
    them are right. `kind`: the class of guesses by whose acceptance it was estimated. `by`: who
    guesses it, for display.
    """

    path: Path
    chance: float
    kind: int
    by: str = ""


class Acceptance:
    """How often guesses of each kind were right lately: running means that begin with `prior`."""

    def __init__(self, prior: Sequence[float], remembered: float = REMEMBERED) -> None:
        self._prior, self._mean, self._remembered = tuple(prior), [*prior], remembered
        self._weight = [PRIOR_WEIGHT] * len(prior)

    def __getitem__(self, kind: int) -> float:
        return self._mean[kind]

    def learn(self, kind: int, *, right: bool) -> None:
        self._weight[kind] = min(self._weight[kind] + 1, self._remembered)
        self._mean[kind] += (right - self._mean[kind]) / self._weight[kind]

    def learn_all(self, guesses: Iterable[Guess], decided: Path) -> None:
        """Learn which of the guesses were right, verified or not; of those behind a wrong one
        nothing is known. `decided`: the tokens that were committed.
        """
        for guess in guesses:
            depth = len(guess.path) - 1
            if depth < len(decided) and guess.path[:depth] == decided[:depth]:
                self.learn(guess.kind, right=guess.path[depth] == decided[depth])

    def forget(self, kind: int) -> None:
        """Go back towards the prior, because nothing was tried: texts may have become easier."""
        self._mean[kind] += (self._prior[kind] - self._mean[kind]) / FORGOTTEN


class DraftLength:
    """How much a round drafts; by itself always `k` tokens, one after another.

    `most`: tokens that a chain may have. `branches`: whether a draft's second best tokens may be
    verified beside the best.
    """

    branches = False

    def __init__(self, k: int) -> None:
        self.most = k

    def best(self, chances: Sequence[float], calls: int = 0) -> tuple[float, int]:
        """What the best round of such guesses earns, the most probable first, and how many of them
        it verifies. Each takes so many `calls` of the draft. Only differences mean anything.
        """
        return sum(chances[: self.most]), len(chances)

    def extends(self, drafted: int, chance: float) -> bool:
        """Say whether to draft a token behind `drafted` ones that are right with this chance."""
        return drafted < self.most

    def proposal(self, guesses: Sequence[Guess], calls: int = 0) -> Proposal:
        """As many of the guesses as pay, the most probable first: no guess is more probable than
        its parent, so parents come first.
        """
        best = sorted(guesses, key=lambda guess: (-guess.chance, len(guess.path)))
        best = best[: self.best([guess.chance for guess in best])[1]]
        rows = {guess.path: row for row, guess in enumerate(best)}
        return Proposal(
            tuple(guess.path[-1] for guess in best),
            tuple(rows.get(guess.path[:-1], -1) for guess in best),
            calls=calls,
            by=tuple(guess.by for guess in best),
        )

    def learn(self, outcome: Outcome) -> None:
        """See what a pass cost and committed; to be called once for each."""

    def summary(self) -> Decision:
        """What was decided round by round; UNDECIDED if nothing was."""
        return UNDECIDED


class AdaptiveDraftLength(DraftLength):
    """Up to `k` tokens a chain, as long as they pay. `costs` are the target's; `call`: seconds of a
    call of the draft to begin with, which what calls then take corrects.
    """

    def __init__(self, costs: Costs, call: float, k: int, *, branches: bool = True) -> None:
        super().__init__(k)
        self.branches = branches
        self._costs = costs
        self._call = call
        self._timed = 1  # rounds that showed what a call takes, and `call` itself
        self._rows, self._context = 1, CONTEXT  # rows of the last pass
        self._plain_steps = self._tokens = float(MEMORY)  # that so many tokens cost lately
        self._rounds = -1  # without the first, in which nothing is drafted
        self._drafting = self._depth = 0  # rounds that drafted; how deep in all

    @property
    def _token(self) -> float:
        """Seconds that a token would cost on the machine as it is now: it may have been slower or
        faster when the passes that are counted ran.
        """
        return self._costs.now.one_row * self._plain_steps / self._tokens

    def best(self, chances: Sequence[float], calls: int = 0) -> tuple[float, int]:
        """In seconds, over a round that takes no time and yields no guess."""
        token, costs, context = self._token, self._costs.now, self._context
        earned, gains = 0.0, list[float]()
        for drafted, chance in enumerate((0.0, *chances)):
            earned += token * chance - (drafted > 0) * calls * self._call
            # A change of width costs twice in the long run: sooner or later there is one back.
            change = 2 * costs.width_change if 1 + drafted != self._rows else 0.0
            gains.append(earned - costs(1 + drafted, context) - change)
        count = max(range(len(gains)), key=gains.__getitem__)
        return gains[count], count

    def extends(self, drafted: int, chance: float) -> bool:
        # The slope over a few rows: T(k) rises in steps, and a single one may be flat or steep.
        rows, costs, context = 1 + drafted, self._costs.now, self._context
        slope = (costs(rows + 4, context) - costs(rows, context)) / 4
        return drafted < self.most and self._token * chance > self._call + slope

    def learn(self, outcome: Outcome) -> None:
        proposal, costs, self._context = outcome.proposal, self._costs.now, outcome.position
        if proposal.calls and self._call:
            self._timed = min(self._timed + 1, MEMORY)
            # Other work may have held it up: it counts as twice as long at most.
            seconds = min(outcome.draft_seconds / proposal.calls, 2 * self._call)
            self._call += (seconds - self._call) / self._timed
        rows, tokens, fade = 1 + len(proposal.tokens), len(outcome.tokens), 1 - 1 / MEMORY
        spent = costs(rows, self._context) + proposal.calls * self._call
        spent += costs.width_change if rows != self._rows else 0.0
        self._rows = rows
        self._plain_steps = fade * self._plain_steps + spent / costs.one_row
        self._tokens = fade * self._tokens + tokens
        self._rounds += 1
        if proposal.drafted:
            self._drafting += 1
            self._depth += max(map(len, proposal.paths)) - proposal.forced

    def summary(self) -> Decision:
        if self._rounds <= 0:
            return UNDECIDED
        if not self._drafting:
            declined = ("no guess paid",)
            return Decision(why="plain decoding", declined=declined, plain=True)
        k = max(1, round(self._depth / self._drafting))
        why = f"auto guessed {k} tokens in {self._drafting} of {self._rounds} passes"
        return Decision({"k": k}, why)
