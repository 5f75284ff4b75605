"""Which W, N and G lookahead should run with here, if any."""

from collections.abc import Sequence
from dataclasses import dataclass

from backend.costs.pass_costs import PassCosts
from backend.decoding.drafter import NOTHING, NullDrafter
from backend.drafters.lookahead import Lookahead
from backend.types import Outcome, Proposal


@dataclass(frozen=True, slots=True)
class Setting:
    """`expected`: tokens per forward with a seeded pool, in the median of the built-in model's
    answers to the six prompts of `python -m backend bench`.
    """

    window: int
    level: int
    guesses: int
    expected: float

    @property
    def rows(self) -> int:
        """Rows of a full pass: the root, the window's branch and all guesses."""
        ahead = self.window - 1 + self.window * (self.level - 2)
        return 1 + ahead + self.guesses * (self.level - 1)


#: From narrow to wide.
LADDER = (
    Setting(3, 3, 3, 1.40),
    Setting(5, 3, 5, 1.53),
    Setting(7, 4, 7, 1.78),
    Setting(15, 5, 15, 1.80),
)

#: What lookahead must promise to be tried: its yield differs much from text to text.
MARGIN = 1.1

#: Steps after which the running setting is judged by what it really yields.
TRIAL = 24


def predicted(setting: Setting, costs: PassCosts) -> float:
    """The speed-up over plain decoding that T(k) promises. The number of guesses differs from pass
    to pass, and with it the width.
    """
    return setting.expected * costs.one_row / (costs(setting.rows) + costs.width_change)


def best_setting(costs: PassCosts) -> Setting | None:
    """The most promising setting; None if it does not promise MARGIN."""
    best = max(LADDER, key=lambda setting: predicted(setting, costs))
    return best if predicted(best, costs) > MARGIN else None


class TrialLookahead(NullDrafter):
    """Runs lookahead as long as it pays: judged by its own tokens per forward now and then."""

    def __init__(self, lookahead: Lookahead, costs: PassCosts) -> None:
        self._lookahead = lookahead
        self._costs = costs
        self._steps = self._tokens = 0
        self._seconds = 0.0
        self._pays = True

    def rewind(self, length: int) -> None:
        self._lookahead.rewind(length)

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        return self._lookahead.propose(context, budget) if self._pays else NOTHING

    def observe(self, outcome: Outcome) -> None:
        if not self._pays or not outcome.proposal.tokens:
            return
        self._lookahead.observe(outcome)
        self._steps += 1
        self._tokens += len(outcome.tokens)
        self._seconds += self._costs(1 + len(outcome.proposal.tokens))
        if self._steps % TRIAL == 0:
            self._pays = self._tokens * self._costs.one_row > self._seconds
