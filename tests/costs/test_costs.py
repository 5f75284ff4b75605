"""T(k): lines through what was measured, kept on disk, measured again when asked."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated import Ticking

from backend.costs import measure as module
from backend.costs.learnt import ASSUMED, WIDTHS, LearntCosts
from backend.costs.measure import (
    LONG_CONTEXT,
    SMALLEST_DIFFERENCE,
    costs_of,
    measure,
    points_within,
)
from backend.costs.pass_costs import CONTEXT, UNKNOWN_COSTS, PassCosts, stated_costs
from backend.engines.fake import FakeEngine
from backend.errors import DerbyError
from backend.racing.models import LoadedModels
from backend.text import ByteTokenizer
from backend.types import Capabilities, ModelSpec

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


def test_a_slope_that_was_measured_too_steep_makes_no_pass_free() -> None:
    """On a busy machine it was, and every column of the first short race ended in a math error."""
    steep = replace(CURVE, context_slope=(1.0, 0.5))
    assert steep(4, 1) == CURVE(4) / 2
    costs = LearntCosts(steep)
    for _ in range(20):
        costs.observe(1, 5, 0.01)
    assert costs.now(1, 5) > 0


def test_measuring_finds_what_passes_take(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Ticking(lambda n, behind: 1 + n / 10 + behind * (2e-4 + 3e-5 * n))
    monkeypatch.setattr(module, "perf_counter", lambda: engine.now)
    monkeypatch.setattr(module, "LARGE", 10.0)
    found = measure(engine, (1, 4, 16), rounds=3)
    assert found.widths == (1, 4, 16)
    assert found.seconds == pytest.approx((1.1, 1.4, 2.6))
    assert found.width_change == pytest.approx(0.0, abs=1e-9)
    assert found.context_slope == pytest.approx((2e-4, 3e-5))
    assert found(4, LONG_CONTEXT) == pytest.approx(1.4 + (LONG_CONTEXT - CONTEXT) * 3.2e-4)
    assert engine.open_sessions == 0


@pytest.mark.parametrize(
    ("row", "widths"), [(0.01, (1, 2, 4, 8, 16)), (0.5, (1, 2, 4)), (9, (1, 2))]
)
def test_a_large_model_is_measured_in_seconds(
    row: float, widths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of 1.17 B parameters was measured for 116 to 495 s, by some 260 passes."""
    engine = Ticking(lambda n, _behind: 0.1 + row * n)
    monkeypatch.setattr(module, "perf_counter", lambda: engine.now)
    found = measure(engine)
    assert found.widths == widths
    assert found.seconds == pytest.approx([0.1 + row * k for k in widths])
    assert found.known
    assert engine.forwards == 1 + 2 * len(widths)
    assert engine.open_sessions == 0


def test_a_measurement_ends_after_seconds_and_tells_how_far_it_has_come(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A model just small enough for all points was measured for a minute, and nothing moved."""
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path))
    engine = Ticking(lambda n, _behind: 0.2 + 0.001 * n)
    engine.spec = ModelSpec("m", "torch")
    monkeypatch.setattr(module, "perf_counter", lambda: engine.now)
    said = list[str]()
    assert costs_of(engine, said.append).now.known
    assert engine.now < 40
    first, *others = said
    assert first == "Measuring the times of passes of m on torch fp32 (CPU)..."
    assert others[0].startswith(f"{first} 10%, about ")
    assert all(sentence.endswith(" s left") for sentence in others)
    assert len(others) == 4, "two rounds at either context"


def test_it_is_measured_once_and_again_when_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path))
    measured: list[PassCosts] = []

    def counting(_engine: object, **_: object) -> PassCosts:
        measured.append(PassCosts((1, 2), (1.0, 2.0 + len(measured)), 0.0, (0.0, 0.0)))
        return measured[-1]

    monkeypatch.setattr(module, "measure", counting)
    engine = FakeEngine(spec=ModelSpec("m", "openvino"))
    first = costs_of(engine, print).now
    assert costs_of(engine, print).now == first
    assert len(measured) == 1
    assert costs_of(engine, print, remeasure=True).now == measured[1] != first
    assert costs_of(engine, print).now == measured[1]
    other = FakeEngine(spec=ModelSpec("m", "openvino", "int8"))
    costs_of(other, print)
    assert len(measured) == 3, "each precision has its own"


def test_a_damaged_file_is_measured_anew_instead_of_believed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One flipped bit could turn 1.5 ms into 9.5, and drafts grew too long ever after. What cannot
    be kept at all is no error.
    """
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "measure", lambda _engine, **_: CURVE)
    engine = FakeEngine(spec=ModelSpec("m", "openvino"))
    costs_of(engine, print)
    (file,) = (tmp_path / "costs").iterdir()
    for number, at in enumerate(range(0, 200, 7)):
        content = bytearray(file.read_bytes())
        content[at % len(content)] ^= 1
        file.write_bytes(content)
        measured = replace(CURVE, width_change=1.0 + number)
        monkeypatch.setattr(module, "measure", lambda _engine, measured=measured, **_: measured)
        assert costs_of(engine, print).now == measured
        assert costs_of(engine, print).now == measured
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(file))
    assert costs_of(engine, print).now == measured


def test_an_engine_that_states_its_costs_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def unwanted(_engine: object, **_: object) -> PassCosts:
        raise AssertionError("it was measured")

    monkeypatch.setattr(module, "measure", unwanted)
    assert costs_of(FakeEngine(), print) is UNKNOWN_COSTS
    stated = costs_of(FakeEngine(ModelSpec("fake-priced", "fake")), print, remeasure=True).now
    assert stated.known
    assert stated.relative(8) > 4, "no guess pays there"
    assert stated_costs({8: 3.0, 1: 1.0, 2: 1.5}) == PassCosts((1, 2, 8), (1.0, 1.5, 3.0))
    for too_little in ({}, {1: 1.0}, {2: 1.0, 4: 2.0}):
        assert stated_costs(too_little) is UNKNOWN_COSTS


@pytest.mark.parametrize(
    ("max_context", "widest", "near", "far"),
    [
        (20, 10, 10, 10),
        (200, 48, 128, 128),  # 24 tokens more tell nothing
        (300, 48, 128, 252),
        (559, 48, 128, 511),
        (8192, 48, 128, 512),
    ],
)
def test_a_model_of_few_positions_is_measured_within_them(
    max_context: int, widest: int, near: int, far: int
) -> None:
    """T(k) was measured up to 512 + 48 positions whatever the model had: with fewer than 560 its
    session refused, and every column of every race failed, each after measuring anew.
    """
    points = points_within(max_context)
    assert (points.widths[-1], points.near, points.far) == (widest, near, far)
    engine = FakeEngine(capabilities=Capabilities(max_context=max_context))
    costs = measure(engine, rounds=1)
    assert costs.known
    assert costs.widths == points.widths
    assert (costs.context_slope != (0.0, 0.0)) <= (far > near)
    assert engine.open_sessions == 0


@given(st.integers(1, 1000))
def test_every_measured_pass_fits_and_the_contexts_differ_much_or_not_at_all(limit: int) -> None:
    points = points_within(limit)
    assert points.widths == WIDTHS[: len(points.widths)]
    assert points.far + points.widths[-1] <= limit
    assert points.near <= points.far <= LONG_CONTEXT
    assert points.far == points.near or points.far - points.near >= SMALLEST_DIFFERENCE


def test_a_measurement_that_fails_means_that_costs_are_learnt_and_is_said_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error went to every column that asked, and each of them had it measured once more."""
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path))
    tried: list[object] = []

    def failing(engine: object, **_: object) -> PassCosts:
        tried.append(engine)
        raise DerbyError("The text would be 560 tokens long.\nAnd so on.")

    monkeypatch.setattr(module, "measure", failing)
    models, said = LoadedModels(), list[str]()
    engine = FakeEngine(spec=ModelSpec("m", "torch"))
    for _ in range(3):
        models.price(engine, said.append)
        assert models.costs(engine).now == ASSUMED
    assert len(tried) == 1
    assert len(said) == 2
    assert "failed (The text would be 560 tokens long): the times of passes of m on" in said[1]
    assert not ASSUMED.known
    assert not list(tmp_path.rglob("*.json")), "the next process tries again"
    models.price(engine, said.append, remeasure=True)
    assert len(tried) == 2


def test_a_failed_measurement_leaves_no_session_open() -> None:
    """Its cache would stay in memory for as long as the model does."""
    engine = FakeEngine(capabilities=Capabilities(max_context=30))
    with pytest.raises(DerbyError):
        module._measured(engine, (1, 48), 1, 20)
    assert engine.open_sessions == 0


@pytest.mark.parametrize("max_context", [20, 559])
def test_a_torch_model_of_few_positions_is_measured_without_complaint(
    max_context: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its cache refused 560 tokens, so no column of such a model ever ran."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from backend.engines.torch.engine import TorchEngine

    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "measure", partial(measure, rounds=1))
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 257}
    config = AutoConfig.for_model("llama", **sizes, **heads, max_position_embeddings=max_context)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    spec, said = ModelSpec("tiny", "torch"), list[str]()
    engine = TorchEngine(spec, model, ByteTokenizer(), max_context, "tiny")
    costs = costs_of(engine, said.append).now
    assert costs.known
    assert not [sentence for sentence in said if "failed" in sentence]
    assert costs_of(engine, said.append).now == costs, "it was kept"
