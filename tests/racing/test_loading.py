"""Models are priced off every clock: each once a race, and anew where that is asked."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backend.costs import measure as measuring
from backend.engines.base import Engine
from backend.engines.fake import FAKE, WEIGHT_BYTES, FakeEngine
from backend.engines.heads.file import HeadShape, write_head
from backend.engines.registry import engine_named
from backend.errors import DerbyError
from backend.events import Event, Failed, Finished, Started, Step
from backend.racing import models as loading
from backend.racing.commands import Measure
from backend.racing.loading import Loading
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.strategies.column import default_column, parse_column
from backend.strategies.speculative import SPECULATIVE
from backend.types import ModelSpec, Request


@dataclass
class Pricing(LoadedModels):
    """Notes what is priced, how, and after how many columns had begun."""

    begun: Callable[[], int]
    priced: list[tuple[str, bool, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def price(self, engine: Engine, say: Callable[[str], None], *, remeasure: bool = False) -> None:
        self.priced.append((engine.spec.name, remeasure, self.begun()))
        super().price(engine, say, remeasure=remeasure)


@pytest.mark.parametrize("measure", [False, True])
def test_a_race_prices_each_model_anew_if_asked_and_only_before_it_begins(*, measure: bool) -> None:
    columns = [default_column(name) for name in ("kv", "lookup", "speculative")]
    columns.append(columns[-1].with_settings({"draft": "fake-draft"}))
    events: list[Event] = []
    models = Pricing(lambda: sum(isinstance(event, Started) for event in events))
    race = Race(Request("Hi", 12), tuple(columns), ModelSpec("fake", "fake"))
    if measure:
        Measure(race.columns, race.target).run(models, events.append, lambda: False)
    race.run(models, events.append, lambda: False)
    anew = [name for name, again, _ in models.priced if again]
    assert anew == (["fake", "fake-draft"] if measure else [])
    assert all(not begun for _, _, begun in models.priced)


@pytest.mark.parametrize(
    ("columns", "measured"),
    [
        (("kv", "lookup:k=3", "speculative:draft=fake-draft,k=2"), []),
        (("kv", "lookup", "lookahead"), ["fake"]),
        (("speculative:draft=fake-draft",), ["fake"]),
    ],
)
def test_only_what_decides_by_costs_has_them_measured(
    columns: tuple[str, ...], measured: list[str]
) -> None:
    """KV reuse of a model of 1.17 B parameters waited for 260 passes before its first token, and a
    draft of a fixed length for as many of the draft.
    """
    models = Pricing(lambda: 0)
    race = Race(Request("Hi", 12), tuple(map(parse_column, columns)), ModelSpec("fake", "fake"))
    race.run(models, lambda _: None, lambda: False)
    assert [name for name, _, _ in models.priced] == measured


def test_kv_reuse_runs_the_passes_of_its_text_and_no_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither costs nor a draft's call are timed for a column that asks for neither."""
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path))
    unpriced = replace(engine_named("fake"), pass_seconds=None)
    monkeypatch.setattr(measuring, "engine_named", lambda _name: unpriced)
    models, spec, steps = LoadedModels(), ModelSpec("fake", "fake"), list[Event]()
    engine = models.get(spec, print)
    assert isinstance(engine, FakeEngine)
    Race(Request("Hi", 12), (parse_column("kv"),), spec).run(models, steps.append, lambda: False)
    assert engine.forwards == sum(isinstance(event, Step) for event in steps) == 12
    before = engine.forwards
    Race(Request("Hi", 12), (parse_column("lookup"),), spec).run(
        models, steps.append, lambda: False
    )
    assert engine.forwards - before > 100, "auto has them measured"


SMALL = HeadShape(4, 1, 1, 4, 8, 1e-5, 1e4, layers=1, reads=(0,), window=8)


@pytest.mark.parametrize(
    ("features", "draft", "said"),
    [
        (True, "theirs.safetensors", "trained for another model than 'fake'"),
        (True, "missing.safetensors", "missing.safetensors is not a trained draft"),
        (True, "text.safetensors", "text.safetensors is not a trained draft"),
        (False, "theirs.safetensors", "No trained draft fits"),
        (True, "trained", "No trained draft fits"),
    ],
)
def test_a_head_that_cannot_draft_here_is_refused(
    *, features: bool, draft: str, said: str, tmp_path: Path
) -> None:
    weights = {"norm.weight": np.ones(4, np.float32)}
    write_head(tmp_path / "theirs.safetensors", SMALL, weights, np.arange(3), "somebody else")
    (tmp_path / "text.safetensors").write_text("not a tensor")
    name = draft if draft == "trained" else str(tmp_path / draft)
    target = FakeEngine(guesses="trees" if features else "none")
    with pytest.raises(DerbyError, match=said):
        Loading(LoadedModels(), print).head(target, SPECULATIVE.weights({"draft": name}, target))


def test_a_line_up_that_cannot_fit_is_refused_before_its_models_are_loaded() -> None:
    """A fifth model, or one too large, met the machine's end of memory instead of a sentence."""
    columns = (default_column("kv"), parse_column("kv:model=fake-loop"))
    race = Race(Request("Hi", 12), columns, ModelSpec("fake", "fake"))
    models, events = LoadedModels(WEIGHT_BYTES * 3 // 2), list[Event]()
    with pytest.raises(DerbyError, match=r"take 2\.0 MB .* and 1\.5 MB may be used"):
        race.run(models, events.append, lambda: False)
    assert not any(isinstance(event, Started) for event in events)
    race.run(LoadedModels(WEIGHT_BYTES * 2), events.append, lambda: False)
    assert sum(isinstance(event, Finished) for event in events) == 2


def test_a_draft_that_does_not_fit_beside_the_targets_fails_its_own_column() -> None:
    columns = (default_column("kv"), parse_column("speculative:draft=fake-draft"))
    race, events = Race(Request("Hi", 12), columns, ModelSpec("fake", "fake")), list[Event]()
    race.run(LoadedModels(WEIGHT_BYTES * 3 // 2), events.append, lambda: False)
    (failed,) = (event for event in events if isinstance(event, Failed))
    assert failed.column == 1
    assert "take 2.0 MB" in failed.message
    assert [event.column for event in events if isinstance(event, Finished)] == [0]


def test_an_error_of_ours_while_passes_are_measured_is_not_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Five calls were made where every exception was suppressed."""

    def price(*_: object, **__: object) -> None:
        raise TypeError("ours")

    monkeypatch.setattr(LoadedModels, "price", price)
    race = Race(Request("Hi", 4), (parse_column("lookup"),), ModelSpec("fake", "fake"))
    with pytest.raises(TypeError, match="ours"):
        race.run(LoadedModels(), lambda _: None, lambda: False)


def test_columns_begin_when_their_own_model_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column whose model was loaded showed nothing until the largest model of the race was."""
    texts = ("kv", "kv:model=fake-loop", "lookup", "kv:model=fake-one-token", "lookup:model=none")
    columns = tuple(map(parse_column, texts))
    models, events = LoadedModels(), list[Event]()
    loaded: dict[str, set[int]] = {}

    def note(spec: ModelSpec, say: Any) -> Engine:
        loaded[spec.name] = {event.column for event in events if isinstance(event, Step)}
        return FAKE.open(spec, say)

    monkeypatch.setattr(loading, "declared", lambda _: replace(FAKE, open=note))

    def run(first: int | None = None) -> dict[int, int]:
        events.clear()
        race = Race(Request("Hi", 12), columns, ModelSpec("fake", "fake"), first=first)
        race.run(models, events.append, lambda: False)
        failed = [event.column for event in events if isinstance(event, Failed)]
        assert failed == [4], "a model that cannot be had fails its own column"
        steps = [event.column for event in events if isinstance(event, Step)]
        return {column: steps.index(column) for column in steps}

    begun = run()
    refused = {"none": {0, 1, 2, 3}}
    assert loaded == {"fake": set(), "fake-loop": {0, 2}, "fake-one-token": {0, 1, 2}} | refused
    assert sorted(begun, key=begun.__getitem__) == [0, 2, 1, 3]
    loaded.clear()
    again = run()
    assert loaded == refused
    assert sorted(again, key=again.__getitem__) == [0, 1, 2, 3], "nobody waits for what is there"
    models = LoadedModels()
    run(first=3)
    assert loaded["fake-loop"] == {0, 3}, "one after another, each waits for its own model alone"


def test_a_copy_that_a_column_can_do_without_is_left_out_where_it_does_not_fit() -> None:
    """The whole line-up was refused for the copy behind prompt lookup."""
    fake, copy = ModelSpec("fake", "fake"), ModelSpec("fake", "fake", "int4")
    loading = Loading(LoadedModels(WEIGHT_BYTES), print)
    loading.batches([default_column("kv")], fake)
    engine, why = loading.draft(fake, copy)
    assert engine is None
    assert "may be used" in why
    assert loading.engine(fake).spec == fake
