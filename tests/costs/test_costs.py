"""T(k): lines through what was measured, kept on disk, measured again when asked."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.costs import pass_costs as module
from backend.costs.pass_costs import (
    CONTEXT,
    LONG_CONTEXT,
    UNKNOWN_COSTS,
    PassCosts,
    costs_of,
    measure,
)
from backend.engines.fake import FakeEngine, FakeSession
from backend.types import Logits, ModelSpec

CURVE = PassCosts((1, 2, 4, 8), (10.0, 12.0, 13.0, 19.0), 0.5)


@given(st.integers(1, 100))
def test_it_passes_through_the_measured_points_and_never_falls(rows: int) -> None:
    assert CURVE(rows + 1) >= CURVE(rows)
    assert CURVE.relative(rows) == CURVE(rows) / 10.0
    if rows in CURVE.widths:
        assert CURVE(rows) == CURVE.seconds[CURVE.widths.index(rows)]
    assert UNKNOWN_COSTS(rows) == UNKNOWN_COSTS.one_row
    assert CURVE.known
    assert not UNKNOWN_COSTS.known


def test_between_and_beyond_lie_straight_lines() -> None:
    assert CURVE(3) == pytest.approx(12.5)
    assert CURVE(6) == pytest.approx(16.0)
    assert CURVE(12) == pytest.approx(25.0)


class Ticking(FakeEngine):
    """A fake whose passes take 1 + rows / 10 of its own seconds, and more behind longer texts."""

    now = 0.0

    def open(self) -> FakeSession:
        session = super().open()
        forward = session.forward

        def ticking(tokens: Sequence[int], parents: Sequence[int], rows: Sequence[int]) -> Logits:
            behind = session.length - CONTEXT
            self.now += 1 + len(tokens) / 10 + behind * (2e-4 + 3e-5 * len(tokens))
            return forward(tokens, parents, rows)

        session.forward = ticking  # type: ignore[method-assign]
        return session


def test_measuring_finds_what_passes_take(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Ticking()
    monkeypatch.setattr(module, "perf_counter", lambda: engine.now)
    found = measure(engine, (1, 4, 16), rounds=3)
    assert found.widths == (1, 4, 16)
    assert found.seconds == pytest.approx((1.1, 1.4, 2.6))
    assert found.width_change == pytest.approx(0.0, abs=1e-9)
    assert found.context_slope == pytest.approx((2e-4, 3e-5))
    assert found(4, LONG_CONTEXT) == pytest.approx(1.4 + (LONG_CONTEXT - CONTEXT) * 3.2e-4)
    assert engine.open_sessions == 0


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
    first = costs_of(engine, print)
    assert costs_of(engine, print) == first
    assert len(measured) == 1
    assert costs_of(engine, print, again=True) == measured[1] != first
    assert costs_of(engine, print) == measured[1]
    other = FakeEngine(spec=ModelSpec("m", "openvino", "int8"))
    costs_of(other, print)
    assert len(measured) == 3, "each precision has its own"
    # A damaged file is measured anew instead of believed.
    for file in (tmp_path / "costs").iterdir():
        file.write_text(json.dumps({"widths": [1]}))
    costs_of(engine, print)
    assert len(measured) == 4
    for file in (tmp_path / "costs").iterdir():
        file.write_text(json.dumps({**asdict(measured[0]), "context_slope": [0.0]}))
    costs_of(engine, print)
    assert len(measured) == 5
    for file in (tmp_path / "costs").iterdir():
        empty: dict[str, object] = {"widths": [], "seconds": [], "growth": [], "change": 0.0}
        file.write_text(json.dumps(empty))
    costs_of(engine, print)
    assert len(measured) == 6


def test_what_cannot_be_kept_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(blocked))
    monkeypatch.setattr(module, "measure", lambda _engine: CURVE)
    assert costs_of(FakeEngine(spec=ModelSpec("m", "torch")), print) == CURVE


def test_the_fake_engine_is_not_measured() -> None:
    assert costs_of(FakeEngine(), print) is UNKNOWN_COSTS
