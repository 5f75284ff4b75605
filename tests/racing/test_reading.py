"""A prompt is read once by the columns on one model, and its time counts for each."""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import families
import pytest
from races import FAKE, board_after, events_of, run_solo

from backend.engines.fake import FakeEngine
from backend.events import Event, Prefilled, Step
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.racing.schedule import Lane, interleave
from backend.strategies.column import parse_column
from backend.types import PREFILL_CHUNK, ModelSpec, Request

TEXT = "One fox saw two foxes, and one of the two foxes saw one. "
REQUEST = Request(4 * TEXT, 24, chat=False)
TOKENS = len(REQUEST.prompt)
SHARED = (TOKENS - 1) // PREFILL_CHUNK * PREFILL_CHUNK  # all but the last pass


def race_of(*names: str, target: ModelSpec = FAKE, first: int | None = None) -> Race:
    return Race(REQUEST, tuple(map(parse_column, names)), target, "ann", first=first)


def read(events: list[Event], column: int) -> list[Prefilled]:
    own = [event for event in events if getattr(event, "column", -1) == column]
    before = takewhile(lambda event: not isinstance(event, Step), own)
    return [event for event in before if isinstance(event, Prefilled)]


def rows(race: Race, models: LoadedModels) -> int:
    """What the target computed."""
    engine = models.get(race.target, print)
    assert isinstance(engine, FakeEngine)
    before = engine.rows
    events_of(race, models)
    return engine.rows - before


def assert_shared_prompts_change_nothing(models: LoadedModels, race: Race) -> None:
    """Texts and guesses are those of columns that read for themselves; the times are the first's,
    and a draft's own.
    """
    events = events_of(race, models)
    scores = board_after(race.columns, events).scores
    first = read(events, 0)
    assert len(first) > 1
    for index, score in enumerate(scores):
        alone, own = run_solo(race, index, models), read(events, index)
        compared = len(score.tokens) if score.reason == "photo finish" else None
        assert score.tokens == alone.tokens[:compared]
        if compared is None:
            assert (score.drafted, score.accepted) == (alone.drafted, alone.accepted)
            assert score.rows == alone.rows
        assert [(e.done, e.total) for e in own] == [(e.done, e.total) for e in first]
        assert all(e.seconds >= f.seconds - 1e-5 for e, f in zip(own, first, strict=True))
        assert score.ttft >= sum(e.seconds for e in first)
        if not race.columns[index].strategy.guesses:
            least = [f.seconds for f in first]
            assert [e.seconds for e in own] == pytest.approx(least, abs=1e-3)


NAMES = ("kv", "stateless", "lookup:k=3", "grammar:grammar=date", "lookahead:window=5")


def test_a_prompt_is_read_once_and_counts_for_each() -> None:
    models = LoadedModels()
    assert_shared_prompts_change_nothing(models, race_of(*NAMES, "speculative:draft=fake-draft"))
    one, three = (rows(race_of(*["kv"] * n), models) for n in (1, 3))
    assert one - SHARED == (three - SHARED) / 3


def test_the_time_is_on_each_one_s_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = list[Lane]()

    def watched(group: Sequence[Lane], *args: Any, **more: Any) -> Iterator[Event]:
        lanes.extend(group)
        return interleave(group, *args, **more)

    monkeypatch.setattr("backend.racing.race.interleave", watched)
    race = race_of("kv", "lookup:k=3", target=ModelSpec("fake-slow", "fake"))
    scores = board_after(race.columns, events_of(race)).scores
    for lane, score in zip(lanes, scores, strict=True):
        assert lane.clock.seconds == pytest.approx(score.seconds, rel=0.01)


@pytest.mark.parametrize(
    ("names", "first", "target"),
    [
        (("kv", "kv"), 0, FAKE),
        (("kv", "kv:model=fake-loop"), None, FAKE),
        (("kv", "kv"), None, ModelSpec("fake-one-token", "fake")),
    ],
    ids=["alone", "another model", "one token at a time"],
)
def test_who_reads_for_itself(names: tuple[str, ...], first: int | None, target: ModelSpec) -> None:
    models = LoadedModels()
    every = [rows(race_of(*names, target=target, first=first), models)]
    others = [parse_column(name).model.name for name in names]
    alone = rows(race_of("kv", target=target), models)
    assert every == [alone * others.count("")]


def test_a_cache_that_holds_something_already_is_not_replaced() -> None:
    models = LoadedModels()
    names = ("kv:cache=session", "kv")
    before = rows(race_of(*names), models)
    assert rows(race_of(*names), models) == before - TOKENS + 1 + SHARED


def test_a_prompt_is_read_once_on_torch(tmp_path: Path) -> None:
    spec = ModelSpec(str(families.make("llama", tmp_path)), "torch")
    assert_shared_prompts_change_nothing(LoadedModels(), race_of(*NAMES[:3], target=spec))


@pytest.mark.model
@pytest.mark.parametrize("spec", [ModelSpec(), ModelSpec(engine="torch")], ids=str)
def test_a_prompt_is_read_once_by_the_built_in_model_and_its_draft(spec: ModelSpec) -> None:
    """The trained draft reads the target's hidden states, which are shared too."""
    race = Race(
        Request(12 * TEXT, 24),
        tuple(map(parse_column, ("stateless", "kv", "speculative:k=4", "lookahead:window=5"))),
        spec,
    )
    assert_shared_prompts_change_nothing(LoadedModels(), race)
