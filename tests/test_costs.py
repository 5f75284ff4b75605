"""T(k): lines through what was measured, stored, measured again when asked, times one scale."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend import costs as module
from backend.costs import (
    ASSUMED,
    CONTEXT,
    LONG_CONTEXT,
    UNKNOWN_COSTS,
    WIDTHS,
    Costs,
    PassCosts,
    RunningCosts,
    measure,
)
from backend.engines.fake import FakeEngine, FakeSession
from backend.errors import DerbyError
from backend.models.files import Say
from backend.racing.models import LoadedModels
from backend.types import Logits, ModelSpec

CURVE = PassCosts((1, 2, 4, 8), (10.0, 12.0, 13.0, 19.0), 0.5)


@given(st.integers(1, 100))
def test_it_passes_through_the_measured_points_and_never_falls(rows: int) -> None:
    assert CURVE(rows + 1) >= CURVE(rows)
    assert CURVE.relative(rows) == CURVE(rows) / 10.0
    if rows in CURVE.widths:
        assert CURVE(rows) == CURVE.seconds[CURVE.widths.index(rows)]
    assert UNKNOWN_COSTS(rows) == UNKNOWN_COSTS.one_row
    assert [CURVE(k) for k in (3, 6, 12)] == pytest.approx([12.5, 16.0, 25.0]), "straight lines"
    assert (CURVE.known, UNKNOWN_COSTS.known, ASSUMED.known) == (True, False, False)


@given(st.floats(0.2, 5.0), st.lists(st.sampled_from([1, 2, 5, 8]), min_size=60, max_size=90))
def test_the_scale_follows_the_machine_and_no_single_pass(speed: float, passes: list[int]) -> None:
    costs = RunningCosts(CURVE)
    for rows in passes:
        costs.observe(rows, CONTEXT, speed * CURVE(rows))
    assert costs.now.seconds == pytest.approx([speed * s for s in CURVE.seconds])
    costs.observe(1, CONTEXT, 1e6)  # something else held it up
    costs.observe(1, CONTEXT, 0.0)  # a clock too coarse to tell
    assert costs.now.one_row == pytest.approx(10 * speed, rel=0.02)
    for rows in passes:
        costs.observe(rows, CONTEXT, 2 * speed * CURVE(rows))
    assert costs.now.one_row == pytest.approx(20 * speed, rel=0.3)
    assert costs.now.relative(8) == pytest.approx(1.9)


def ticking(monkeypatch: pytest.MonkeyPatch, slower: float, max_context: int) -> FakeEngine:
    """A fake whose passes take, on a clock of its own, so long for each row and each token beyond
    those that costs are quoted at.
    """
    now, forward = 0.0, FakeSession.forward

    def ticked(session: FakeSession, tokens: Sequence[int], *more: Sequence[int]) -> Logits:
        nonlocal now
        n, beyond = len(tokens), session.length - CONTEXT
        now += slower * (1 + 0.1 * n + beyond * (2e-4 + 3e-5 * n))
        return forward(session, tokens, *more)

    monkeypatch.setattr(FakeSession, "forward", ticked)
    monkeypatch.setattr(module, "perf_counter", lambda: now)
    return FakeEngine(max_context=max_context)


@pytest.mark.parametrize(
    ("slower", "max_context", "widths", "slope"),
    [
        (0.01, 4096, 6, (2e-6, 3e-7)),
        (1.0, 4096, 6, (0.0, 0.0)),  # a large model: one round takes long enough
        (0.01, 2, 1, (0.0, 0.0)),
        (0.01, 20, 4, (0.0, 0.0)),
        (0.01, 300, 6, (0.0, 0.0)),
    ],
)
def test_measuring_finds_what_passes_take_within_the_positions_of_the_model(
    monkeypatch: pytest.MonkeyPatch,
    slower: float,
    max_context: int,
    widths: int,
    slope: tuple[float, float],
) -> None:
    engine = ticking(monkeypatch, slower, max_context)
    costs = measure(engine)
    assert costs.widths == WIDTHS[:widths]
    missing = min(0, max_context - WIDTHS[widths - 1] - CONTEXT)
    expected = [slower * (1 + k / 10 + missing * (2e-4 + 3e-5 * k)) for k in costs.widths]
    assert costs.seconds == pytest.approx(expected)
    assert costs.width_change == pytest.approx(0.0, abs=1e-9)
    assert costs.context_slope == pytest.approx(slope)
    longer = (LONG_CONTEXT - CONTEXT) * (slope[0] + slope[1])
    assert costs(1, LONG_CONTEXT) == pytest.approx(expected[0] + longer)
    assert engine.open_sessions == 0


def costs_of(engine: FakeEngine, say: Say = print, *, remeasure: bool = False) -> Costs:
    """Of a program that has just started."""
    models = LoadedModels()
    models.measure_costs(engine, say, remeasure=remeasure)
    return models.costs(engine)


def test_it_is_measured_once_and_again_when_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path))
    measured: list[PassCosts] = []

    def counting(_engine: object) -> PassCosts:
        measured.append(PassCosts((1, 2), (1.0, 2.0 + len(measured)), 0.0, (0.0, 0.0)))
        return measured[-1]

    monkeypatch.setattr(module, "measure", counting)
    engine = FakeEngine(spec=ModelSpec("m", "openvino"))
    first = costs_of(engine).now
    assert costs_of(engine).now == first
    assert len(measured) == 1
    assert costs_of(engine, remeasure=True).now == measured[1] != first
    assert costs_of(engine).now == measured[1]
    costs_of(FakeEngine(spec=ModelSpec("m", "openvino", "int8")))
    assert len(measured) == 3, "each precision has its own"
    (tmp_path / "costs").joinpath("x").touch()
    for file in (tmp_path / "costs").iterdir():
        file.write_text("{damaged")
    costs_of(engine)
    assert len(measured) == 4


def test_an_engine_that_stands_in_for_a_model_is_not_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(module, "measure")
    unknown = costs_of(FakeEngine(), remeasure=True)
    unknown.observe(1, CONTEXT, 99.0)
    assert unknown.now is UNKNOWN_COSTS, "for good"


def test_a_measurement_that_fails_leaves_what_is_assumed_and_is_explained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path))

    def failing(engine: object) -> PassCosts:
        raise DerbyError("The text would be 560 tokens long.\nAnd so on.")

    monkeypatch.setattr(module, "measure", failing)
    sentences = list[str]()
    assert costs_of(FakeEngine(spec=ModelSpec("m", "torch")), sentences.append).now == ASSUMED
    assert "(The text would be 560 tokens long)" in sentences[1]
    assert not list(tmp_path.rglob("*.json")), "the next race tries again"
