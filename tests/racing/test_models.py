"""Loaded models: each once, within a budget of bytes, and none dropped that a race needs."""

import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.engines.fake import FAKE, WEIGHT_BYTES, FakeEngine
from backend.errors import DerbyError
from backend.racing import models as loading
from backend.racing.models import BUDGET_VARIABLE, SHARE, LoadedModels, model_budget
from backend.types import ModelSpec

NAMES = ("fake", "fake-draft", "fake-loop", "fake-slow", "fake-endless")
ONE, TWO, THREE, FOUR, _ = SPECS = tuple(ModelSpec(name, "fake") for name in NAMES)


def quiet(_text: str) -> None: ...


def room_for(models: int) -> LoadedModels:
    return LoadedModels(models * WEIGHT_BYTES + WEIGHT_BYTES // 2)


def loaded(models: LoadedModels) -> list[ModelSpec]:
    return list(models._loaded)


def test_a_model_is_loaded_once() -> None:
    models = room_for(1)
    assert models.get(ONE, quiet) is models.get(ModelSpec("fake", "fake"), quiet)


def test_the_one_used_longest_ago_goes_first_and_its_memory_with_it() -> None:
    models = room_for(2)
    first = models.get(ONE, quiet)
    second = weakref.ref(models.get(TWO, quiet))
    assert models.get(ONE, quiet) is first
    models.get(THREE, quiet)
    assert loaded(models) == [ONE, THREE]
    assert second() is None


@settings(max_examples=12)  # each model dropped costs a garbage collection
@given(st.integers(1, 4), st.lists(st.sampled_from(SPECS), max_size=8))
def test_as_many_stay_as_fit_and_they_are_the_last_used(room: int, asked: list[ModelSpec]) -> None:
    models, latest = room_for(room), list[ModelSpec]()
    for spec in asked:
        models.get(spec, quiet)
        latest = [*(other for other in latest if other != spec), spec][-room:]
        assert loaded(models) == latest


def test_what_a_race_needs_stays_even_if_it_was_used_longest_ago() -> None:
    """The count of four dropped the oldest whoever needed it: a race of five models loaded some of
    them again for every draft.
    """
    models = room_for(2)
    needed = models.get(ONE, quiet)
    models.get(TWO, quiet)
    models.require_room([ONE, THREE], quiet)
    models.get(THREE, quiet)
    assert loaded(models) == [ONE, THREE]
    assert models.get(ONE, quiet) is needed
    models.require_room([FOUR], quiet)
    models.get(FOUR, quiet)
    assert loaded(models) == [ONE, FOUR], "the next race needs them no more"


def test_a_line_up_that_cannot_fit_is_refused_with_both_figures_before_loading() -> None:
    models = room_for(2)
    models.get(FOUR, quiet)
    with pytest.raises(DerbyError) as caught:
        models.require_room([ONE, TWO, THREE], quiet)
    sentence = str(caught.value)
    assert "take 3.0 MB" in sentence
    assert "2.5 MB may be used" in sentence
    assert BUDGET_VARIABLE in sentence
    assert loaded(models) == [FOUR]


def test_columns_of_one_model_need_it_once() -> None:
    models = room_for(2)
    models.require_room([ONE] * 8 + [TWO] * 4, quiet)


def test_a_model_larger_than_the_budget_is_refused_before_it_is_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FakeEngine, "__init__", lambda *_: pytest.fail("it was opened"))
    with pytest.raises(DerbyError, match=r"take 1\.0 MB .* and 0\.5 MB may be used"):
        room_for(0).get(ONE, quiet)


def test_a_conversion_has_its_room_before_it_starts_or_is_refused_with_both_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Converting took 7.6 GB where 0.9 had been estimated."""
    peak = replace(FAKE, peak_bytes=lambda spec, _: 2 * WEIGHT_BYTES * (spec != ONE))
    monkeypatch.setattr(loading, "declared", lambda _: peak)
    models = room_for(2)
    models.require_room([ONE], quiet)
    models.get(ONE, quiet)
    models.require_room([TWO], quiet)
    models.get(TWO, quiet)
    assert loaded(models) == [TWO]
    models = room_for(2)
    models.require_room([ONE, TWO], quiet)
    models.get(ONE, quiet)
    monkeypatch.setattr(FakeEngine, "__init__", lambda *_: pytest.fail("it was opened"))
    with pytest.raises(DerbyError, match=r"takes up to 2\.0 MB .* and 1\.5 MB may be used"):
        models.get(TWO, quiet)


def test_a_model_that_cannot_be_had_is_for_its_own_column_to_tell(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A form that named an unknown engine once wrote a traceback into the log of a page under
    attack, though nothing in the program had failed.
    """
    caplog.set_level("INFO")
    models, missing = room_for(1), ModelSpec("fake", "no-such-engine")
    models.require_room([missing, ONE], quiet)
    assert "no-such-engine" in caplog.text
    assert "Traceback" not in caplog.text
    models.get(ONE, quiet)
    with pytest.raises(DerbyError, match="'no-such-engine'"):
        models.get(missing, quiet)


def test_a_model_larger_than_its_estimate_takes_the_room_of_those_not_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models = room_for(2)
    models.get(ONE, quiet)
    monkeypatch.setattr(
        FakeEngine,
        "weight_bytes",
        property(lambda engine: WEIGHT_BYTES * (2 if engine.spec == TWO else 1), lambda *_: None),
        raising=False,  # each engine sets its own
    )
    models.require_room([TWO], quiet)
    models.get(TWO, quiet)
    assert loaded(models) == [TWO]


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
    models.get(ONE, quiet)
    assert len(widths) == 3, "none begins after 4 s"
    assert not models.warm_up(None)
    assert len(widths) == 64


@pytest.mark.parametrize("stated", ["0", "-5", "4GB", "1e9", "²"])
def test_a_budget_that_cannot_be_read_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, stated: str
) -> None:
    monkeypatch.setenv(BUDGET_VARIABLE, stated)
    with pytest.raises(DerbyError, match=BUDGET_VARIABLE):
        LoadedModels().require_room([ONE], quiet)


def test_the_budget_is_what_is_stated_or_a_share_of_what_there_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(BUDGET_VARIABLE, " 12345 ")
    assert model_budget() == LoadedModels().budget == 12345
    assert LoadedModels(99).budget == 99
    monkeypatch.delenv(BUDGET_VARIABLE)
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(loading, "CONTAINER_LIMIT", limit)
    whole = model_budget()
    assert whole > 0
    limit.write_text("max\n")
    assert model_budget() == whole
    limit.write_text("1000000\n")
    assert model_budget() == int(SHARE * 1_000_000)
