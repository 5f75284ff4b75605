"""Costs that correct themselves: what passes teach, what that decides, and what is kept."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lib import PROMPT
from simulated import Machine, busy, race, timed

from backend.costs import measure as measuring
from backend.costs.learnt import ASSUMED, ENOUGH, WIDTHS, Correction, LearntCosts
from backend.costs.measure import costs_of
from backend.costs.pass_costs import CONTEXT, UNKNOWN_COSTS, Costs, PassCosts
from backend.costs.store import _digest, keep, kept_costs
from backend.decoding import clock as clock_module
from backend.decoding.clock import Clock
from backend.decoding.digits import rounded_value
from backend.decoding.loop import Parts, decode
from backend.decoding.sampling import Sampler
from backend.engines.fake import FakeEngine
from backend.errors import DerbyError
from backend.events import CostsKnown, Event, Finished, Step
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request, Sampling
from experiments.costs import CURVES

#: A machine where each row costs much, so that what is drafted must be chosen well.
STEEP = PassCosts(
    WIDTHS,
    tuple(0.02 * (1.17 + 0.18 * (k - 2) if k > 1 else 1.0) for k in WIDTHS),
    2e-3,
    (2e-6, 1e-7),
)

#: Passes of a race: plain ones of another column beside rounds of several widths.
ROUND = (1, 1, 3, 3, 1, 5, 5, 2, 1, 1, 8, 8)


def learn(
    costs: LearntCosts, truth: PassCosts, passes: int, wobble: Callable[[], float] = lambda: 1.0
) -> None:
    """Have it see so many passes of a machine for which `truth` holds."""
    before = 0
    for number in range(passes):
        rows, context = ROUND[number % len(ROUND)], 100 + number
        changed = truth.width_change if rows != before else 0.0
        costs.observe(rows, context, (truth(rows, context) + changed) * wobble())
        before = rows


@pytest.mark.parametrize("bend", CURVES.values(), ids=CURVES)
def test_a_wrong_curve_is_corrected_by_the_passes_of_one_race(
    bend: Callable[[PassCosts], PassCosts],
) -> None:
    costs = LearntCosts(bend(STEEP))
    learn(costs, STEEP, 128)
    for rows in ROUND:
        assert costs.now.relative(rows) == pytest.approx(STEEP.relative(rows), rel=0.03)
        assert costs.now(rows, 400) == pytest.approx(STEEP(rows, 400), rel=0.05)
    assert costs.now.width_change == pytest.approx(STEEP.width_change, rel=0.25)


@pytest.mark.parametrize("bend", CURVES.values(), ids=CURVES)
def test_a_busy_machine_teaches_the_shape_all_the_same(
    bend: Callable[[PassCosts], PassCosts],
) -> None:
    """One measured while other work ran was believed for ever, and auto drafted too little."""
    found: dict[int, list[float]] = {rows: [] for rows in ROUND}
    for seed in range(8):
        costs = LearntCosts(bend(STEEP))
        learn(costs, STEEP, 300, busy(seed))
        for rows, each in found.items():
            each.append(costs.now.relative(rows) / STEEP.relative(rows))
    for rows, each in found.items():
        assert mean(each) == pytest.approx(1.0, abs=0.06), rows
        assert all(0.8 < ratio < 1.25 for ratio in each), rows


def test_a_hiccup_counts_for_little_and_a_slower_moment_moves_the_scale_alone() -> None:
    costs = LearntCosts(STEEP)
    learn(costs, STEEP, 120)
    before = costs.now
    costs.observe(5, 128, 20 * STEEP(5))
    assert costs.now.relative(5) == pytest.approx(before.relative(5), rel=0.03)
    assert costs.now.one_row == pytest.approx(before.one_row, rel=0.15)
    slower = replace(STEEP, seconds=tuple(1.6 * each for each in STEEP.seconds))
    learn(costs, slower, 40)
    assert costs.now.one_row == pytest.approx(1.6 * STEEP.one_row, rel=0.05)
    for rows in ROUND:
        assert costs.now.relative(rows) == pytest.approx(STEEP.relative(rows), rel=0.05)


def test_what_is_seen_of_some_widths_is_believed_of_their_neighbours() -> None:
    """Half as dear at 2, 3, 5 and 8 rows: so are 4 and 6 rows, and 16 are less dear than stated."""
    stored = CURVES["twice as steep"](STEEP)
    costs = LearntCosts(stored)
    learn(costs, STEEP, 240)
    for rows in (4, 6):
        assert costs.now.relative(rows) == pytest.approx(STEEP.relative(rows), rel=0.03)
    for rows in (16, 48):
        assert costs.now.relative(rows) < 0.8 * stored.relative(rows)


@given(
    st.lists(
        st.tuples(st.integers(1, 80), st.integers(0, 4000), st.floats(1e-6, 10.0)), max_size=60
    )
)
def test_whatever_it_sees_it_stays_a_curve(seen: list[tuple[int, int, float]]) -> None:
    costs = LearntCosts(STEEP)
    for rows, context, seconds in seen:
        costs.observe(rows, context, seconds)
        assert 0 < costs.now.one_row < 100
        assert list(costs.now.seconds) == sorted(costs.now.seconds)
        assert all(a <= b for a, b in zip(costs.hoped.seconds, costs.now.seconds, strict=True))
    assert LearntCosts(STEEP, costs.correction).now.one_row > 0


def test_what_nobody_tried_may_cost_less_and_what_was_tried_is_certain() -> None:
    costs = LearntCosts(STEEP)
    learn(costs, STEEP, 240)
    doubt = {k: 1 - costs.hoped(k) / costs.now(k) for k in (1, 8, 48)}
    assert max(doubt[1], doubt[8]) < 0.03 < doubt[48]


def test_what_is_assumed_counts_as_known_after_enough_passes_of_both_kinds() -> None:
    costs = LearntCosts(ASSUMED)
    for _ in range(5 * ENOUGH):
        costs.observe(1, CONTEXT, 0.1)
    assert not costs.now.known
    assert costs.now.one_row == pytest.approx(0.1, rel=0.02), "the first pass tells the scale"
    for _ in range(ENOUGH):
        costs.observe(4, CONTEXT, 0.12)
    assert costs.now.known


def test_the_pass_behind_a_prompt_changes_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes that read a prompt were not heard of: the step behind them counted as one that keeps
    the width, so what the change cost it was believed of the machine.
    """
    machine, costs = Machine(STEEP), LearntCosts(STEEP)
    monkeypatch.setattr(clock_module, "perf_counter", lambda: machine.now)
    engine, request = FakeEngine(vocab_size=256), Request("x", max_new_tokens=3)
    for _ in range(20):
        session = timed(engine.open(), lambda rows, context: machine.run(0, rows, context))
        parts = Parts(session, engine.tokenizer, Sampler(Sampling()), Clock(), costs=costs)
        list(decode(0, PROMPT, request, parts))
    assert costs.now.width_change == pytest.approx(STEEP.width_change, rel=0.05)
    assert costs.now.one_row == pytest.approx(STEEP.one_row, rel=0.01)


def test_a_clock_too_coarse_to_tell_teaches_nothing_and_stated_costs_learn_nothing() -> None:
    costs = LearntCosts(STEEP)
    costs.observe(3, 100, 0.0)
    assert costs.now == STEEP
    for stated in (STEEP, UNKNOWN_COSTS):
        stated.observe(3, 100, 7.0)
        assert stated.now is stated.hoped is stated


# What it decides: speculation beside KV reuse, on a machine of which all but its noise is known.


@pytest.mark.parametrize(
    ("noise", "seeds"),
    [
        (lambda _seed: lambda: 1.0, 1),
        pytest.param(lambda _seed: lambda: 1.0, 4, marks=pytest.mark.thorough),
        pytest.param(busy, 4, marks=pytest.mark.thorough),
    ],
    ids=["quiet", "quiet, more answers", "busy"],
)
def test_auto_comes_to_what_a_good_curve_gives(
    noise: Callable[[int], Callable[[], float]], seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one race from a wrong curve, after two from none; believed, a wrong one loses."""

    def gain_after(races: int, made: Callable[[], Costs]) -> float:
        """The speed-up that is reached once so many races have taught such costs: on a quiet
        machine, of two answers a seed, so that little but the costs makes a difference.
        """
        plain = speculative = 0.0
        for seed in range(seeds):
            machine, costs = Machine(STEEP, noise(seed)), made()
            for number in range(races):
                race(machine, costs, 100 * seed + number, monkeypatch)
            machine.wobble = lambda: 1.0
            for number in (50, 51):
                race(machine, costs, 100 * seed + number, monkeypatch)
                plain, speculative = plain + machine.ideal[0], speculative + machine.ideal[1]
        return plain / speculative

    good = gain_after(0, lambda: STEEP)
    for name, bend in CURVES.items():
        found = gain_after(2 if name == "none" else 1, lambda bend=bend: LearntCosts(bend(STEEP)))
        assert found > 0.95 * good, name
    assert gain_after(0, lambda: CURVES["twice as steep"](STEEP)) < 0.95 * good


def test_a_decision_tells_what_passes_were_found_to_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It promised what the stored curve said of the first rounds, wrong as that was."""
    for name, bend in CURVES.items():
        machine = Machine(STEEP)
        base, score = race(machine, LearntCosts(bend(STEEP)), 7, monkeypatch)
        # What was drafted by what calls took, which the machine's clock told.
        assert score.decision.predicted == pytest.approx(score.speedup_over(base), rel=0.05), name


# What is kept.


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """One whose costs are measured: as STEEP."""
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path))
    monkeypatch.setattr(measuring, "measure", lambda _engine, **_: STEEP)
    return FakeEngine(spec=ModelSpec("m", "openvino"))


def learnt(engine: FakeEngine) -> LearntCosts:
    costs = costs_of(engine, print)
    assert isinstance(costs, LearntCosts)
    return costs


def test_the_shape_is_kept_for_the_next_process_and_goes_on_from_there(engine: FakeEngine) -> None:
    costs = learnt(engine)
    truth = CURVES["half as steep"](STEEP)
    learn(costs, truth, 200)
    keep(engine, costs)
    again = learnt(engine)
    assert again.now == costs.now
    assert again.prior == STEEP
    fresh = LearntCosts(STEEP)
    for each in (again, fresh):
        learn(each, truth, 4)
    assert abs(again.now.relative(5) / truth.relative(5) - 1) < 0.03
    assert abs(fresh.now.relative(5) / truth.relative(5) - 1) > 0.03
    # Measured again, what was learnt of the old curve is gone.
    assert costs_of(engine, print, remeasure=True).now == STEEP
    assert learnt(engine).now == STEEP


def test_what_does_not_fit_the_curve_is_not_believed(engine: FakeEngine, tmp_path: Path) -> None:
    """A file of an earlier version is a measurement alone."""
    costs = learnt(engine)
    learn(costs, CURVES["half as steep"](STEEP), 50)
    keep(engine, costs)
    (file,) = (tmp_path / "costs").iterdir()
    kept = json.loads(file.read_text().partition("\n")[0])

    def found(kept: dict[str, Any]) -> LearntCosts | None:
        text = json.dumps(kept)
        file.write_text(f"{text}\n{_digest(text)}")
        return kept_costs(engine)

    for wrong in (float("nan"), "x", None, [1.0]):
        kept["learnt v1"]["mean"][2] = wrong
        assert found(kept) is None
    del kept["learnt v1"], kept["assumed"]
    earlier = found(kept)
    assert earlier is not None
    assert earlier.now == STEEP
    with pytest.raises(ValueError, match="a correction of that curve"):
        LearntCosts(STEEP, Correction((0.0,), ((1.0,),)))


def test_where_measuring_fails_what_races_taught_is_kept(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_engine: object, **_: object) -> PassCosts:
        raise DerbyError("No.")

    monkeypatch.setattr(measuring, "measure", failing)
    costs = learnt(engine)
    assert costs.prior == ASSUMED
    learn(costs, STEEP, 100)
    keep(engine, costs)
    again = learnt(engine)
    assert again.now.relative(5) == pytest.approx(STEEP.relative(5), rel=0.05)
    monkeypatch.setattr(measuring, "measure", lambda _engine, **_: STEEP)
    assert learnt(engine).now == STEEP, "it is tried again each time"


def test_a_race_tells_the_costs_and_keeps_what_they_learnt(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = LoadedModels()
    models.price(engine, print)
    costs = models.costs(engine)
    assert models.costs(engine) is costs
    models.keep_costs()
    monkeypatch.setattr(models, "_loaded", {engine.spec: engine})
    other = LearntCosts(ASSUMED)
    with models.supposing(engine, other):
        models.price(engine, print)
        assert models.costs(engine) is other
        race(Machine(STEEP), models.costs(engine), 1, monkeypatch)
        models.keep_costs()
        assert learnt(engine).now == STEEP, "what is but supposed is not kept"
    machine = Machine(CURVES["half as steep"](STEEP))
    base, score = race(machine, costs, 1, monkeypatch)
    models.keep_costs()
    assert learnt(engine).now == costs.now != STEEP
    assert isinstance(costs, LearntCosts)
    passes = base.passes + score.passes
    assert costs.passes == passes, "each but those that read the prompt"


@pytest.mark.thorough
@pytest.mark.model
def test_races_on_a_real_engine_correct_its_costs() -> None:
    """From none: two rows and more were tried, both columns were heard, and the page is told."""
    models, target, said = LoadedModels(), ModelSpec(), list[Event]()
    engine, costs = models.get(target, print), LearntCosts(ASSUMED)
    columns = (parse_column("kv"), parse_column("speculative"))
    with models.supposing(engine, costs):
        Race(Request("List ten capitals.", 64), columns, target).run(
            models, said.append, lambda: False
        )
    assert costs.now.known
    steps = [event for event in said if isinstance(event, Step)]
    assert costs.passes == len(steps) - len(columns), "all but those that read the prompt"
    known = [event for event in said if isinstance(event, CostsKnown)]
    assert len(known) == len(columns), "nothing at the beginning"
    assert known[-1].passes == [rounded_value(seconds) for seconds in costs.now.seconds]
    assert isinstance(said[said.index(known[-1]) + 1], Finished)
    drafting = [step for step in steps if step.calls]
    seconds = sum(step.seconds["draft"] for step in drafting)
    assert sum(each.draft for each in known) * sum(step.calls for step in drafting) == (
        pytest.approx(seconds, rel=0.005)
    ), "what it took, told in three digits; not what it had been timed to take"
