"""Loaded models: each once, within a budget of bytes that caches share. What a race needs stays,
and what cannot be had fails its own columns. A large model
without a precision runs at the second one.
"""

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import chat_model
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from race_runs import FAKE as FAKE_SPEC
from race_runs import board_after, events_of

from backend import costs as measuring
from backend.cli.options import target_of
from backend.engines.fake import FAKE, WEIGHT_BYTES, FakeEngine
from backend.engines.registry import engine_named
from backend.errors import DerbyError
from backend.machine import computes_bf16
from backend.racing import models as loading
from backend.racing.models import BUDGET_VARIABLE, SHARE, LoadedModels, model_budget, usual_spec
from backend.racing.race import Race
from backend.results.scoreboard import Score
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request

NAMES = ("fake", "fake-draft", "fake-loop", "fake-slow", "fake-endless")
ONE, TWO, THREE, *_ = SPECS = tuple(ModelSpec(name, "fake") for name in NAMES)


def room_for(models: int, more: int = WEIGHT_BYTES // 2) -> LoadedModels:
    return LoadedModels(models * WEIGHT_BYTES + more)


def loaded(models: LoadedModels) -> list[ModelSpec]:
    return list(models._loaded)


def scores(models: LoadedModels, *names: str, target: ModelSpec = FAKE_SPEC) -> Sequence[Score]:
    race = Race(Request("Hi", 12, chat=False), tuple(map(parse_column, names)), target)
    return board_after(race.columns, events_of(race, models)).scores


@settings(max_examples=6)  # each model dropped costs a garbage collection
@given(st.integers(1, 4), st.lists(st.sampled_from(SPECS), max_size=8))
def test_as_many_stay_as_fit_and_they_are_the_last_used(room: int, used: list[ModelSpec]) -> None:
    models, latest = room_for(room), list[ModelSpec]()
    for spec in used:
        models.begin([spec])
        assert models.get(spec, print) is models.get(spec, print)
        latest = [*(other for other in latest if other != spec), spec][-room:]
        assert loaded(models) == latest


def test_what_a_race_needs_stays_and_the_memory_of_others_goes_with_them() -> None:
    models = room_for(2)
    needed, other = models.get(ONE, print), weakref.ref(models.get(TWO, print))
    models.begin([ONE, THREE])
    models.get(THREE, print)
    assert loaded(models) == [ONE, THREE]
    assert other() is None
    assert models.get(ONE, print) is needed
    with pytest.raises(DerbyError, match=r"Loading .* takes 1\.0 MB .* and 0\.5 MB may be used"):
        models.get(TWO, print)


def test_what_has_no_room_is_refused_before_it_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, and what a conversion takes on the way."""
    peak = replace(FAKE, peak_bytes=lambda spec, _: 2 * WEIGHT_BYTES * (spec != ONE))
    monkeypatch.setattr(loading, "engine_named", lambda _: peak)
    models = room_for(2)
    models.get(ONE, print)
    models.begin([TWO])
    models.get(TWO, print)
    assert loaded(models) == [TWO]
    monkeypatch.setattr(FakeEngine, "__init__", lambda *_: pytest.fail("it was opened"))
    with pytest.raises(DerbyError, match=r"takes 2\.0 MB .* and 1\.5 MB may be used"):
        models.get(THREE, print)
    with pytest.raises(DerbyError, match=r"takes 1\.0 MB .* and 0\.5 MB may be used"):
        room_for(0).get(ONE, print)


def test_what_cannot_be_had_fails_its_own_columns_and_is_tried_once_a_race(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[str] = []

    def note(spec: ModelSpec, _say: object) -> FakeEngine:
        tried.append(spec.name)
        return FAKE.open(spec, print)

    monkeypatch.setattr(loading, "engine_named", lambda _: replace(FAKE, open=note))
    models, names = LoadedModels(), ("kv", "kv:model=none", "lookup:model=none", "lookup")
    for _ in range(2):
        states = [score.state for score in scores(models, *names)]
        assert states == ["done", "failed", "failed", "done"]
    assert tried == ["fake", "none", "none"]


ROWS = len("Hi") + 12


def test_caches_count_with_the_weights_while_their_columns_run() -> None:
    row, names = FakeEngine().row_bytes, ("kv", "lookup:k=3", "kv")
    slow = scores(room_for(1, 2 * ROWS * row), *names, target=ModelSpec("fake-slow", "fake"))
    assert [score.state for score in slow] == ["done", "done", "failed"]
    assert "The KV cache of 14 tokens" in slow[2].message
    models = room_for(1, 3 * ROWS * row)
    for _ in range(2):
        assert [score.state for score in scores(models, *names)] == ["done"] * 3
    assert models._cache_bytes == 0


def test_only_what_decides_by_costs_has_them_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """KV reuse of a model of 1.17 B parameters waited for 260 passes before its first token."""
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path))
    unpriced = replace(engine_named("fake"), demo=False)
    monkeypatch.setattr(measuring, "engine_named", lambda _name: unpriced)
    models = LoadedModels()
    engine = models.get(ONE, print)
    for names, measured in ((("kv", "lookup:k=3"), False), (("kv", "lookup"), True)):
        before = engine.forwards
        steps = sum(score.steps for score in scores(models, *names))
        assert (engine.forwards - before > steps + 100) == measured
        assert measured or engine.forwards - before == steps


def test_warming_up_ends_after_some_seconds_however_much_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All 64 widths of a model of 1.17 B parameters were warmed up before its first token."""
    now, widths = 0.0, list[int]()

    def passing(_engine: FakeEngine) -> Iterator[None]:
        nonlocal now
        for width in range(64):
            now += 1.5
            widths.append(width)
            yield

    monkeypatch.setattr(FakeEngine, "warm_up", passing)
    monkeypatch.setattr(loading, "perf_counter", lambda: now)
    models = LoadedModels()
    models.get(ONE, print)
    assert len(widths) == 3, "none begins after 4 s"
    while models.warm_up():
        pass
    assert len(widths) == 64


def test_the_budget_is_what_is_stated_or_a_share_of_what_there_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(BUDGET_VARIABLE, " 12345 ")
    assert model_budget() == 12345
    for text in ("0", "-5", "4GB", "\u00b2"):
        monkeypatch.setenv(BUDGET_VARIABLE, text)
        with pytest.raises(DerbyError, match=BUDGET_VARIABLE):
            model_budget()
    monkeypatch.delenv(BUDGET_VARIABLE)
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(loading, "CONTAINER_LIMIT", limit)
    whole = model_budget()
    assert whole > 0
    limit.write_text("max\n")
    assert model_budget() == whole
    limit.write_text("1000000\n")
    assert model_budget() == int(SHARE * 1_000_000)


@pytest.mark.parametrize(
    ("engine", "flags", "second"),
    [
        ("openvino", "fpu", "int8"),
        ("torch", "fpu avx512_bf16 amx_tile", "bf16"),
        ("torch", "fpu avx2 avx512f", "fp32"),
    ],
)
def test_a_large_model_of_ones_own_runs_at_the_second_precision_and_says_why(
    engine: str, flags: str, second: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models of gigabytes were converted to fp32 and loaded at twice their size or more. Without
    bf16 a processor computes it by detours, and several times as slowly.
    """
    facts = tmp_path / "cpuinfo"
    facts.write_text(f"model name : x\nflags : {flags}\n")
    monkeypatch.setattr(loading, "computes_bf16", partial(computes_bf16, facts))
    spec, sentences = ModelSpec(str(chat_model.make(tmp_path)), engine), list[str]()
    assert usual_spec(spec, sentences.append).precision == "fp32"
    assert sentences == []
    monkeypatch.setattr(loading, "LARGE", 1e3)
    assert usual_spec(spec, sentences.append).precision == second
    assert len(sentences) == (second != "fp32")
    assert all(f"it runs at {second}, or at fp32 with --precision fp32" in s for s in sentences)
    assert target_of(spec.name, engine, "", "CPU").precision == second
    beside = replace(spec, device="CUDA")  # where the processor's bf16 is no matter
    assert usual_spec(beside, print).precision == ("bf16" if engine == "torch" else second)
    assert target_of(spec.name, engine, "fp32", "CPU").precision == "fp32", "who names one gets it"
    for other in (ModelSpec(), ModelSpec("fake", "fake"), ModelSpec("/no/such/model")):
        assert usual_spec(other, pytest.fail).precision == "fp32"


def test_a_ready_made_model_runs_as_it_is_stored(tmp_path: Path) -> None:
    """It was asked for at fp32, and then refused: "choose int4 instead of 'fp32'"."""
    folder = chat_model.make(tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "openvino_model.bin").write_bytes(b"")
    for kinds, precision in (("u8 i4", "int4"), ("f32 i8", "int8"), ("f16", "fp32")):
        written = "".join(f'<data element_type="{kind}" />' for kind in kinds.split())
        (folder / "openvino_model.xml").write_text(written)
        assert usual_spec(ModelSpec(str(folder)), pytest.fail).precision == precision
