"""How much to draft in a round: a fixed number of tokens, or as many as pay.

A round that drafts d tokens costs T(1 + d) and the drafting, and yields 1 + the expected number
of accepted tokens. Whatever earns tokens for less than they cost on average is worth doing: with
t, the seconds that a token has cost lately, the best round maximises t * yield - cost (the marginal
rule of renewal-reward processes).
"""

from collections.abc import Sequence
from typing import Protocol

from backend.costs.pass_costs import CONTEXT, PassCosts
from backend.types import Outcome

#: Rounds that the running average of a token's cost remembers.
MEMORY = 30


class DraftLength(Protocol):
    @property
    def most(self) -> int:
        """Tokens that a round may draft at most."""
        ...

    @property
    def branches(self) -> bool:
        """Whether a draft's second best tokens may be verified beside the best."""
        ...

    def verify_count(self, path_probabilities: Sequence[float]) -> int:
        """How many drafted tokens to verify, given each one's chance of being accepted, the best
        first. They are there already: drafting them costs nothing more.
        """
        ...

    def padding_rows(self, drafted: int) -> int:
        """Rows to send along for nothing, for a pass of another width than the last costs more."""
        ...

    def extends(self, drafted: int, path_probability: float) -> bool:
        """Say whether to draft a token behind `drafted` ones that are right so probably."""
        ...

    def begin(self, context: int) -> None:
        """A round behind so many tokens."""
        ...

    def learn(self, outcome: Outcome) -> None:
        """See what a round cost and committed."""
        ...


class FixedDraftLength:
    """Always `k` tokens, one after another."""

    branches = False

    def __init__(self, k: int) -> None:
        self.most = k

    def verify_count(self, path_probabilities: Sequence[float]) -> int:
        return len(path_probabilities)

    def padding_rows(self, drafted: int) -> int:
        return 0

    def extends(self, drafted: int, path_probability: float) -> bool:
        return drafted < self.most

    def begin(self, context: int) -> None: ...

    def learn(self, outcome: Outcome) -> None: ...


class AdaptiveDraftLength:
    """Up to `k` tokens a chain, as long as they pay. `costs` are the target's, `draft` is what a
    call of the draft takes in seconds.
    """

    def __init__(self, costs: PassCosts, draft: float, k: int, *, branches: bool = True) -> None:
        """`branches`: the target can verify trees."""
        self.most = k
        self.branches = branches
        self._costs = costs
        self._draft = draft
        self._rows = 1  # of the last pass
        self._context = CONTEXT
        self._seconds = costs.one_row * MEMORY
        self._tokens = float(MEMORY)

    def _cost(self, drafted: int) -> float:
        """What such a pass costs in the long run: a change of width, sooner or later, twice."""
        return self._costs(1 + drafted, self._context) + 2 * self._change(drafted)

    def _change(self, drafted: int) -> float:
        return self._costs.width_change * (1 + drafted != self._rows)

    @property
    def _earned(self) -> float:
        """Seconds that a token has cost lately."""
        return self._seconds / self._tokens

    def verify_count(self, path_probabilities: Sequence[float]) -> int:
        best, gain, earned = 0, -self._cost(0), 0.0
        for drafted, path_probability in enumerate(path_probabilities, 1):
            earned += self._earned * path_probability
            if earned - self._cost(drafted) > gain:
                best, gain = drafted, earned - self._cost(drafted)
        return best

    def padding_rows(self, drafted: int) -> int:
        more = self._rows - (1 + drafted)
        if drafted == 0 or more <= 0:
            return 0
        return more if self._cost(drafted + more) < self._cost(drafted) else 0

    def extends(self, drafted: int, path_probability: float) -> bool:
        if drafted >= self.most:
            return False
        # The slope over a few rows: T(k) rises in steps, and a single one may be flat or steep.
        rows = 1 + drafted
        context = self._context
        slope = (self._costs(rows + 4, context) - self._costs(rows, context)) / 4
        return self._earned * path_probability > self._draft + slope

    def begin(self, context: int) -> None:
        self._context = context

    def learn(self, outcome: Outcome) -> None:
        fade, proposal = 1 - 1 / MEMORY, outcome.proposal
        sent = len(proposal.tokens)
        passed = self._costs(1 + sent, self._context) + self._change(sent)
        spent = passed + proposal.calls * self._draft
        self._seconds = fade * self._seconds + spent
        self._tokens = fade * self._tokens + len(outcome.tokens)
        self._rows = 1 + sent


class AcceptanceEstimates:
    """How often guesses of each kind were right: prior beliefs, corrected by what happens.

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
