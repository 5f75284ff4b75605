"""A cache that a column need not compute, of a file or another column, changes no text and no
count: what is new is computed, and a shared prompt's time counts for each.
"""

from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import families
import pytest
from race_runs import FAKE, board_after, events_of, run_solo
from safetensors.numpy import load_file, save_file

from backend.engines.fake import FakeEngine
from backend.events import Event, Prefilled, Step
from backend.racing.caches import _identity
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Score
from backend.strategies.column import parse_column
from backend.types import PREFILL_CHUNK, ModelSpec, Request

TEXT = "One fox saw two foxes, and one of the two foxes saw one. "


@pytest.fixture(params=["fake", "torch", pytest.param("openvino", marks=pytest.mark.model)])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> ModelSpec:
    """A model on each engine."""
    if request.param == "torch":
        return ModelSpec(str(families.make("llama", tmp_path / "llama")), "torch")
    return FAKE if request.param == "fake" else ModelSpec()


def raced(
    models: LoadedModels,
    prompt: str,
    *names: str,
    target: ModelSpec = FAKE,
    save: Path | None = None,
    restore: Path | None = None,
) -> list[Score]:
    columns, request = tuple(map(parse_column, names)), Request(prompt, 4, chat=False)
    race = Race(request, columns, target, save_cache=save, restore_cache=restore)
    return list(board_after(columns, events_of(race, models)).scores)


def test_a_saved_cache_is_restored_exactly(target: ModelSpec, tmp_path: Path) -> None:
    models, file = LoadedModels(), tmp_path / "one.safetensors"
    encode = models.get(target, print).tokenizer.encode
    (saved,) = raced(models, TEXT, "kv", target=target, save=file)
    prompt = f"{TEXT}{saved.text} And then"
    restored, stateless = raced(models, prompt, "kv", "stateless", target=target, restore=file)
    (alone,) = raced(models, prompt, "kv", target=target)
    assert restored.tokens == alone.tokens
    assert stateless.reused == 0
    text = [*encode(TEXT, chat=False), *saved.tokens][:-1]
    pairs = zip(text, encode(prompt, chat=False), strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    assert restored.reused == shared > len(TEXT) // 5
    assert restored.rows == alone.rows - restored.reused


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"model": "another"}, "The saved cache is of model 'another'"),
        ({"precision": "int4"}, "of precision 'int4', and this column's is 'fp32'"),
        ({"format": "decode-derby-cache-1"}, "holds no cache that --save-cache wrote"),
    ],
)
def test_another_model_s_cache_is_refused(
    tmp_path: Path, changed: dict[str, str], reason: str
) -> None:
    models, file = LoadedModels(), tmp_path / "one.safetensors"
    raced(models, TEXT, "kv", save=file)
    save_file(load_file(file), file, _identity(models.get(FAKE, print)) | changed)
    (score,) = raced(models, TEXT, "kv", restore=file)
    assert reason in score.message


def test_the_first_column_that_keeps_a_cache_is_saved(tmp_path: Path) -> None:
    file = tmp_path / "one.safetensors"
    raced(LoadedModels(), TEXT, "stateless", "kv", "lookup", save=file)
    assert load_file(file)["tokens"].tolist()[: len(TEXT)] == list(TEXT.encode())
    assert list(tmp_path.iterdir()) == [file]
    race = Race(Request(TEXT), (parse_column("stateless"),), FAKE)
    assert race.saved_column is None
    assert replace(race, columns=(*race.columns, parse_column("kv"))).saved_column == 1


SHARED = Request(4 * TEXT, 24, chat=False)
TOKENS = len(SHARED.prompt)
FIRST_PASSES = (TOKENS - 1) // PREFILL_CHUNK * PREFILL_CHUNK  # the last pass is each one's own


def shared(*names: str, target: ModelSpec = FAKE, alone_from: int | None = None) -> Race:
    return Race(SHARED, tuple(map(parse_column, names)), target, alone_from=alone_from)


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


@pytest.mark.model
def test_a_shared_prompt_changes_nothing_for_the_built_in_model_and_its_draft() -> None:
    """The trained draft reads the target's hidden states, which are shared too."""
    names = ("kv", "speculative:k=4")
    assert_nothing_changes(
        Race(Request(12 * TEXT, 12), tuple(map(parse_column, names)), ModelSpec())
    )


def test_a_shared_prompt_changes_nothing_but_what_is_computed(tmp_path: Path) -> None:
    names = ("kv", "stateless", "lookup:k=3", "grammar:grammar=date", "lookahead:window=5")
    assert_nothing_changes(shared(*names, "speculative:draft=fake-draft"))
    torch = ModelSpec(str(families.make("llama", tmp_path)), "torch")
    assert_nothing_changes(shared(*names[:3], target=torch))
    models = LoadedModels()
    one, three = (rows(shared(*["kv"] * n), models) for n in (1, 3))
    assert one - FIRST_PASSES == (three - FIRST_PASSES) / 3


def assert_nothing_changes(race: Race) -> None:
    """Texts and guesses are those of columns that read for themselves; the times are the first's,
    and a draft's own.
    """
    models = LoadedModels()
    events = events_of(race, models)
    first = read(events, 0)
    assert len(first) > 1
    for index, score in enumerate(board_after(race.columns, events).scores):
        alone, own = run_solo(race, index, models), read(events, index)
        compared = len(score.tokens) if score.reason == "photo finish" else None
        assert score.tokens == alone.tokens[:compared]
        if compared is None:
            counts = (alone.drafted, alone.accepted, alone.rows)
            assert (score.drafted, score.accepted, score.rows) == counts
        assert [(e.done, e.total) for e in own] == [(e.done, e.total) for e in first]
        assert all(e.seconds >= f.seconds - 1e-5 for e, f in zip(own, first, strict=True))
        assert score.ttft >= sum(e.seconds for e in first)


@pytest.mark.parametrize(
    ("names", "alone_from", "target"),
    [
        (("kv", "kv"), 0, FAKE),
        (("kv", "kv:model=fake-loop"), None, FAKE),
        (("kv", "kv"), None, ModelSpec("fake-one-token", "fake")),
    ],
    ids=["alone", "another model", "one token at a time"],
)
def test_who_reads_for_itself(
    names: tuple[str, ...], alone_from: int | None, target: ModelSpec
) -> None:
    models = LoadedModels()
    computed = rows(shared(*names, target=target, alone_from=alone_from), models)
    own_models = [parse_column(name).model.name for name in names]
    assert computed == rows(shared("kv", target=target), models) * own_models.count("")
