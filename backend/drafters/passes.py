"""The passes that a run made: what they should have taken, by the costs that are known by now."""

from collections.abc import Sequence
from typing import NamedTuple

from backend.costs.pass_costs import PassCosts


class MadePass(NamedTuple):
    """`rows` of a pass, the `context` tokens before it, whether its width `changed` from the pass
    before, `calls` of the draft, and `tokens` that it committed.
    """

    rows: int
    context: int
    changed: bool
    calls: int
    tokens: int

    def seconds(self, costs: PassCosts, draft: float = 0.0) -> float:
        """What it should take, with `draft` seconds for each call."""
        change = costs.width_change if self.changed else 0.0
        return costs(self.rows, self.context) + change + self.calls * draft


def speedup(passes: Sequence[MadePass], costs: PassCosts, draft: float = 0.0) -> float:
    """How much sooner they should be done than plain passes over as many tokens."""
    plain = sum(made.tokens * costs(1, made.context) for made in passes)
    return plain / sum(made.seconds(costs, draft) for made in passes)
