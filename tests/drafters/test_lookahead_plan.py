"""Which lookahead runs where, and what its decision says."""

import pytest
from lib import run

from backend.costs.pass_costs import UNKNOWN_COSTS, PassCosts
from backend.drafters.lookahead import Lookahead
from backend.drafters.lookahead_plan import (
    LADDER,
    MEASURED,
    USUAL,
    YIELDS,
    choose_sizes,
    predicted,
)
from backend.engines.fake import FakeEngine
from backend.events import Decided
from backend.types import Request

CURVE = PassCosts((1, 2, 4, 8, 16), (10.0, 11.0, 12.0, 14.0, 22.0))
FLAT = PassCosts((1, 64), (10.0, 10.0))
STEEP = PassCosts((1, 16), (10.0, 40.0))


@pytest.mark.parametrize("costs", [CURVE, FLAT, STEEP, PassCosts((1, 16), (10.0, 14.0), 3.0)])
def test_the_best_setting_is_the_one_that_costs_promise_most_of(costs: PassCosts) -> None:
    sizes, decision = choose_sizes(costs, MEASURED)
    assert predicted(sizes, costs) == max(predicted(other, costs) for other in LADDER)
    assert (decision.settings, decision.predicted) == (sizes.values, predicted(sizes, costs))
    assert bool(decision.declined) == (decision.predicted <= 1), "it says where it does not pay"
    assert choose_sizes(FLAT, MEASURED)[0] == max(LADDER, key=YIELDS.__getitem__)


def test_nothing_is_predicted_of_another_model() -> None:
    """The yields of the built-in model were promised of every model."""
    sizes, decision = choose_sizes(FLAT, "another")
    assert sizes == choose_sizes(FLAT, MEASURED)[0]
    assert decision.predicted == 0.0


def test_where_costs_are_unknown_nothing_is_promised() -> None:
    sizes, decision = choose_sizes(UNKNOWN_COSTS, MEASURED)
    assert (sizes, decision.settings, decision.predicted) == (USUAL, USUAL.values, 0.0)


def test_the_column_tells_of_its_decision_once() -> None:
    sizes, decision = choose_sizes(FLAT, MEASURED)
    shape = (sizes.window, sizes.level, sizes.guesses)
    drafter = Lookahead(*shape, seeded=True, seed=1, decision=decision)
    events = run(FakeEngine(), Request("x", max_new_tokens=40), drafter).events
    told = [event for event in events if isinstance(event, Decided)]
    assert [event.settings for event in told] == [sizes.values]
