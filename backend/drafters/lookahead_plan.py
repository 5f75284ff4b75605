"""Which window, level and guesses lookahead runs with here, and whether that pays."""

from collections.abc import Mapping
from dataclasses import dataclass

from backend.costs.pass_costs import CONTEXT, PassCosts
from backend.decoding.drafter import Decision


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
        return f"window {self.window}, level {self.level}, guesses {self.guesses}"


#: Tokens per pass at each of these sizes, from narrow to wide, with a seeded pool, in the median
#: of the answers that the model MEASURED gave to the six prompts of `python -m backend bench`,
#: greedy. Those of other models are assumed to be the same.
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

TIMES = "\N{MULTIPLICATION SIGN}"


def predicted(sizes: Sizes, costs: PassCosts) -> float:
    """The speed-up over plain decoding that T(k) promises."""
    return YIELDS[sizes] / _plain_steps(sizes, costs)


def _plain_steps(sizes: Sizes, costs: PassCosts) -> float:
    """The time of a full pass in one-token passes, at the context that costs are quoted at. The
    number of guesses differs from pass to pass, and with it the width.
    """
    return (costs(sizes.rows, CONTEXT) + costs.width_change) / costs(1, CONTEXT)


def choose_sizes(costs: PassCosts, model: str) -> tuple[Sizes, Decision]:
    """The sizes that promise most on the model of this name, and the decision for them."""
    if not costs.known:
        return USUAL, Decision(USUAL.values, why=f"{USUAL}: the usual sizes")
    sizes = max(LADDER, key=lambda sizes: predicted(sizes, costs))
    gain, cost = predicted(sizes, costs), f"{_plain_steps(sizes, costs):.2f}{TIMES}"
    why = f"{sizes}: a pass takes {cost} as long, for about {YIELDS[sizes]:.1f} tokens"
    against = (f"expected speed-up {gain:.2f}{TIMES}",) if gain <= 1 else ()
    return sizes, Decision(sizes.values, gain if model == MEASURED else 0.0, why, against)
