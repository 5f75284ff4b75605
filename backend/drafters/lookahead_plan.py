"""Which window, level and guesses lookahead runs with here, and whether that pays."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from backend.costs.pass_costs import CONTEXT, Costs, PassCosts
from backend.decoding.drafter import NOTHING, Decision, Drafter
from backend.drafters.lookahead import Lookahead
from backend.drafters.passes import MadePass, speedup
from backend.types import Outcome, Proposal

#: How to choose: what pays most here; the same, but plain decoding where that is faster; or the
#: largest sizes.
Auto = Literal["best", "decline", "largest"]


@dataclass(frozen=True, slots=True)
class Sizes:
    window: int
    level: int
    guesses: int

    @property
    def rows(self) -> int:
        """Rows of a full pass: the root, the window's branch and all guesses."""
        ahead = self.window - 1 + self.window * (self.level - 2)
        return 1 + ahead + self.guesses * (self.level - 1)

    @property
    def values(self) -> dict[str, int]:
        """By the names of lookahead's settings."""
        return {"window": self.window, "level": self.level, "guesses": self.guesses}

    def __str__(self) -> str:
        return f"a window of {self.window}, level {self.level} and {self.guesses} guesses"


#: Tokens per pass at each of these sizes, from narrow to wide, with a seeded pool, in the median
#: of the answers that the model MEASURED gave to the six prompts of `python -m backend bench`,
#: greedy. Those of other models are assumed to be the same until they have run.
YIELDS: Mapping[Sizes, float] = {
    Sizes(3, 3, 3): 1.40,
    Sizes(5, 3, 5): 1.53,
    Sizes(7, 4, 7): 1.78,
    Sizes(15, 5, 15): 1.80,
}
MEASURED = "built-in"

LADDER = tuple(YIELDS)

#: The sizes where nobody knows what passes cost.
USUAL = LADDER[1]

#: What lookahead must promise to be tried: its yield differs much from text to text.
MARGIN = 1.1

TIMES = "\N{MULTIPLICATION SIGN}"

#: Steps after which the running sizes are judged by what they really yield.
TRIAL = 24


def predicted(sizes: Sizes, costs: PassCosts) -> float:
    """The speed-up over plain decoding that T(k) promises. The number of guesses differs from pass
    to pass, and with it the width.
    """
    return YIELDS[sizes] / _plain_steps(sizes, costs)


def _plain_steps(sizes: Sizes, costs: PassCosts) -> float:
    """The time of a full pass in one-token passes, at the context that costs are quoted at."""
    return (costs(sizes.rows, CONTEXT) + costs.width_change) / costs(1, CONTEXT)


def choose_sizes(costs: PassCosts, auto: Auto, model: str) -> tuple[Sizes, Decision]:
    """The sizes for the model of this name, and the decision for it; without settings in the
    decision, lookahead is declined.
    """
    if not costs.known:
        sizes = LADDER[-1] if auto == "largest" else USUAL
        return sizes, Decision(sizes.values, why=f"{sizes}, as the time of a pass is unknown here")
    best = max(LADDER, key=lambda sizes: predicted(sizes, costs))
    sizes = LADDER[-1] if auto == "largest" else best
    gain, measured = predicted(sizes, costs), model == MEASURED
    promise = _promise(sizes, costs, measured=measured)
    pays = gain > MARGIN
    if auto == "decline" and not pays:
        declined = f"lookahead would not be faster: {promise}"
        return sizes, Decision({}, 1.0, "plain decoding", (declined,), plain=True)
    place = "largest setting" if auto == "largest" else "best setting here"
    source = "predicted" if measured else "assumed"
    against = (
        f"at the start, the {source} speed-up was {gain:.2f}{TIMES}: with auto=decline this column "
        "would not have guessed"
    )
    return sizes, Decision(
        sizes.values,
        gain if measured else 0.0,
        f"{sizes}, the {place}: {promise}",
        () if pays else (against,),
    )


def _promise(sizes: Sizes, costs: PassCosts, *, measured: bool) -> str:
    tokens = f"{YIELDS[sizes]:.1f} tokens"
    yields = f"yields about {tokens}"
    if not measured:
        yields = f"is assumed to yield {tokens}, as on {MEASURED}"
    cost = f"{_plain_steps(sizes, costs):.2f}{TIMES} as long"
    return f"a pass over {sizes.rows} rows takes {cost} here and {yields}"


def plan_lookahead(
    costs: Costs, auto: Auto, model: str, make: Callable[[Sizes], Lookahead]
) -> "PlannedLookahead":
    """Lookahead with the sizes that `auto` chooses for the model of this name."""
    sizes, decision = choose_sizes(costs.now, auto, model)
    return PlannedLookahead(make(sizes), sizes, decision, costs, gives_up=auto == "decline")


class PlannedLookahead(Drafter):
    """Runs lookahead as decided, and corrects the decision by what its own steps yield and cost.

    With `gives_up` it ends as soon as they were dearer than plain ones, looked at every TRIAL
    steps. Steps in which a grammar forced tokens do not count.
    """

    def __init__(
        self,
        lookahead: Lookahead,
        sizes: Sizes,
        decision: Decision,
        costs: Costs,
        *,
        gives_up: bool,
    ) -> None:
        self.decision = self._planned = decision
        self._lookahead = lookahead
        self._sizes = sizes
        self._costs = costs
        self._gives_up = gives_up
        self._runs = not decision.plain
        self._context = 0  # tokens before the last proposal
        self._rows = 1  # of the last pass
        self._passes: list[MadePass] = []  # of its own steps
        self._lost_after = 0  # steps when they were first found not to pay; 0: never

    def rewind(self, length: int) -> None:
        self._lookahead.rewind(length)

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        self._context = len(context)
        return self._lookahead.propose(context, budget) if self._runs else NOTHING

    def observe(self, outcome: Outcome) -> None:
        before, self._rows = self._rows, 1 + len(outcome.proposal.tokens)
        if not self._runs or self._rows == 1:
            return
        self._lookahead.observe(outcome)
        if outcome.proposal.forced:
            return
        changed, tokens = self._rows != before, len(outcome.tokens)
        self._passes.append(MadePass(self._rows, self._context, changed, 0, tokens))
        if len(self._passes) % TRIAL == 0:
            self._judge()

    def _judge(self) -> None:
        """See after some steps whether they paid."""
        if self._costs.now.known and self._speedup <= 1:
            self._lost_after = self._lost_after or len(self._passes)
        if self._gives_up and self._lost_after:
            self._runs = False
            gone = f"lookahead with {self._sizes} was stopped: {self._account}"
            self.decision = Decision({}, 1.0, "plain decoding", (gone,), plain=True)
        elif len(self._passes) == TRIAL:
            self._correct()

    def conclude(self) -> None:
        if self._runs and self._passes:
            self._correct()

    def _correct(self) -> None:
        """Decide again what is in force, by what its steps yielded and cost."""
        gain = self._speedup if self._costs.now.known else 0.0
        why, declined = f"{self._sizes}: {self._account}", self._planned.declined
        if self._lost_after and not declined:
            declined = (f"auto=decline would stop guessing after {self._lost_after} passes",)
        self.decision = Decision(self._sizes.values, gain, why, declined)

    @property
    def _speedup(self) -> float:
        """What its steps gained over plain ones, by what passes are known to cost by now."""
        return speedup(self._passes, self._costs.now)

    @property
    def _account(self) -> str:
        yielded = sum(made.tokens for made in self._passes) / len(self._passes)
        gain = f"{len(self._passes)} passes wrote {yielded:.2f} tokens each"
        if not self._costs.now.known:
            return f"{gain}; the time of a pass is unknown here"
        cost = yielded / self._speedup
        return f"{gain}; such a pass should take {cost:.2f}{TIMES} as long"
