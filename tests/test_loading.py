"""Models are priced off every clock: each once a race, and anew where that is asked."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from backend.engines import Engines
from backend.engines.base import Engine
from backend.engines.costs import Costs
from backend.events import Event, Started
from backend.race import Race, run_race
from backend.strategies import STRATEGIES
from backend.types import ModelSpec, Request


@dataclass
class Pricing(Engines):
    """Notes what is priced, how, and after how many columns had begun."""

    begun: Callable[[], int]
    priced: list[tuple[str, bool, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def costs(self, engine: Engine, say: Callable[[str], None], *, again: bool = False) -> Costs:
        self.priced.append((engine.spec.name, again, self.begun()))
        return super().costs(engine, say, again=again)


@pytest.mark.parametrize("measure", [False, True])
def test_a_race_prices_each_model_anew_if_asked_and_only_before_it_begins(*, measure: bool) -> None:
    columns = [STRATEGIES[name] for name in ("kv", "lookup", "speculative")]
    columns.append(columns[-1].with_settings({"draft": "fake-draft"}))
    events: list[Event] = []
    engines = Pricing(lambda: sum(isinstance(event, Started) for event in events))
    race = Race(Request("Hi", 12), tuple(columns), ModelSpec("fake", "fake"))
    run_race(replace(race, measure=measure), engines, events.append, lambda: False)
    anew = [name for name, again, _ in engines.priced if again]
    assert anew == (["fake", "fake-draft"] if measure else [])
    assert all(not begun for _, again, begun in engines.priced if again)
