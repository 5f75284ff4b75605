"""T(k, b): measured, kept, and what it says of drafters."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated import Ticking

from backend.costs import measure as clock
from backend.costs import measure_load as module
from backend.costs.load import (
    UNKNOWN_LOAD,
    Drafting,
    LoadCosts,
    acceptance_of,
    break_even,
    tokens_of,
)
from backend.costs.measure import LONG_CONTEXT
from backend.costs.measure_load import LOAD_WIDTHS, REQUESTS, measure_load
from backend.costs.pass_costs import CONTEXT, PassCosts
from backend.costs.store import keep_load, kept_load
from backend.engines.fake import FakeEngine, FakeStore
from backend.errors import DerbyError
from backend.types import Capabilities, ModelSpec

#: Rows are free up to eight of them in all, and cost a tenth of a pass each from there on.
LOAD = LoadCosts(
    (1, 2, 4, 8),
    tuple(
        PassCosts((1, 2, 4, 8), tuple(1.0 + max(0, b * k - 8) / 10 for k in (1, 2, 4, 8)))
        for b in (1, 2, 4, 8)
    ),
)


def test_measuring_finds_what_passes_of_several_requests_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Ticking(lambda b, n, behind: 1 + b * n / 10 + b * behind * n * 1e-5)
    monkeypatch.setattr(clock, "perf_counter", lambda: engine.now)
    found = measure_load(engine, print, requests=(1, 2, 4), rounds=1)
    assert found.requests == (1, 2, 4)
    for b, curve in zip(found.requests, found.curves, strict=True):
        assert curve.widths == LOAD_WIDTHS
        for k, seconds in zip(curve.widths, curve.seconds, strict=True):
            assert seconds == pytest.approx(1 + b * k / 10, rel=0.01)
        assert found(4, b, LONG_CONTEXT) > found(4, b, CONTEXT)
    assert engine.open_sessions == 0


def test_more_requests_are_never_cheaper() -> None:
    disturbed = [PassCosts((1, 2), (9.0, 2.0)), PassCosts((1, 2), (1.5, 3.0))]
    assert [each.seconds for each in module._undisturbed(disturbed)] == [(1.5, 2.0), (1.5, 3.0)]


def test_what_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_free", lambda: 3 * module._bytes_of(FakeEngine()))
    assert measure_load(FakeEngine(), print, rounds=1).requests == (1, 2)


def test_a_load_that_fails_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    real, said = FakeEngine.store, list[str]()

    def failing(engine: FakeEngine, sequences: int) -> FakeStore:
        if sequences > 2:
            raise MemoryError
        return real(engine, sequences)

    def broken(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(FakeEngine, "store", failing)
    assert measure_load(FakeEngine(), said.append, rounds=1).requests == (1, 2)
    assert "4 requests do not fit" in said[-1]
    monkeypatch.setattr(clock, "_timed", broken)
    with pytest.raises(DerbyError, match="could not be measured"):
        measure_load(FakeEngine(), said.append, rounds=1)


def test_it_can_be_stopped_and_needs_batches() -> None:
    assert measure_load(FakeEngine(), print, lambda: True) is UNKNOWN_LOAD
    assert not UNKNOWN_LOAD.known
    engine = FakeEngine(capabilities=Capabilities(batch=False))
    with pytest.raises(DerbyError, match="one request per pass"):
        measure_load(engine, print)


def test_it_is_kept_and_a_damaged_file_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path))
    engine = FakeEngine(spec=ModelSpec("m", "openvino"))
    assert kept_load(engine) is UNKNOWN_LOAD
    keep_load(engine, LOAD)
    assert kept_load(engine) == LOAD
    assert kept_load(FakeEngine(spec=ModelSpec("n", "openvino"))) is UNKNOWN_LOAD
    (file,) = (tmp_path / "costs").iterdir()
    file.write_bytes(file.read_bytes().replace(b"1.8", b"1.9", 1))
    assert kept_load(engine) is UNKNOWN_LOAD


def test_between_what_was_measured_lie_straight_lines() -> None:
    assert LOAD(4, 4) == pytest.approx(1.8)
    assert LOAD(3, 4) == pytest.approx((LOAD(2, 4) + LOAD(4, 4)) / 2)
    assert LOAD(4, 3) == pytest.approx((LOAD(4, 2) + LOAD(4, 4)) / 2)
    assert LOAD(4, 16) == pytest.approx(LOAD(4, 8) + 2 * (LOAD(4, 8) - LOAD(4, 4)))
    assert LoadCosts((1,), LOAD.curves[:1])(2.5, 7) == LOAD(2.5, 1)


def test_a_request_decides_by_its_share() -> None:
    assert LOAD.share(8)(4) == pytest.approx(LOAD(4, 8) / 8)
    assert LOAD.share(1) == replace(LOAD.curves[0])


@given(st.floats(0.01, 0.99), st.integers(1, 15))
def test_break_even_is_where_a_pass_is_worth_its_time(acceptance: float, guesses: int) -> None:
    tokens = tokens_of(acceptance, guesses)
    assert tokens == pytest.approx((1 - acceptance ** (guesses + 1)) / (1 - acceptance))
    assert break_even(tokens, guesses) == pytest.approx(acceptance, abs=1e-4)
    assert acceptance_of(tokens, guesses) == pytest.approx(acceptance, abs=1e-4)
    assert break_even(guesses + 1.01, guesses) is None
    assert break_even(1.0, guesses) == pytest.approx(0.0, abs=1e-6)


def test_fewer_guesses_pay_as_requests_become_more() -> None:
    drafter = Drafting(0.6, 0.0)
    found = drafter.schedule(LOAD, CONTEXT, 7)
    assert found[0][0] == 1
    assert found[-1][1] == LOAD.most
    guesses = [k for _, _, k in found]
    assert guesses == sorted(guesses, reverse=True)
    assert guesses[0] == 7
    assert all(a[1] + 1 == b[0] for a, b in pairwise(found))
    assert Drafting(0.6, 1.0).best(LOAD, 1, CONTEXT, 7) == 0, "drafting costs more than it gains"
    for requests in REQUESTS[:4]:
        best = drafter.best(LOAD, requests, CONTEXT, 7)
        gains = [drafter.gain(LOAD, k, requests, CONTEXT) for k in range(8)]
        assert gains[best] == max(gains)
