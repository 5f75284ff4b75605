"""A cache that a column need not compute, of an earlier race, a file or another column, changes no
text and no count: what is new is computed, and a shared prompt's time counts for each.
"""

from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import families
import numpy as np
import pytest
from race_runs import FAKE, board_after, events_of, run_solo
from safetensors.numpy import load_file, save_file

from backend.engines.fake import FakeEngine
from backend.engines.session import Session
from backend.events import Event, Prefilled, Prepared, Step
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.racing.sessions import STEP, Place, Sessions, _identity
from backend.results.scoreboard import Score
from backend.strategies.column import parse_column
from backend.types import PREFILL_CHUNK, Layers, ModelSpec, Request

TEXT = "One fox saw two foxes, and one of the two foxes saw one. "
SESSION = "kv:cache=session"


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
    visitor: str = "ann",
    save: Path | None = None,
    restore: Path | None = None,
) -> list[Score]:
    columns, request = tuple(map(parse_column, names)), Request(prompt, 12, chat=False)
    race = Race(request, columns, target, visitor=visitor, save_cache=save, restore_cache=restore)
    return list(board_after(columns, events_of(race, models)).scores)


def fake(models: LoadedModels) -> FakeEngine:
    engine = models.get(FAKE, print)
    assert isinstance(engine, FakeEngine)
    return engine


def common(one: list[int], other: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def test_a_second_run_computes_what_is_new(target: ModelSpec) -> None:
    """Of a longer prompt, of a shorter one, and of one that parts ways in the middle."""
    names = (SESSION, "lookup:k=3,cache=session", "speculative:draft=fake-draft,k=3,cache=session")
    for name in names if target == FAKE else names[:1]:
        models, before = LoadedModels(), list[int]()
        encode = models.get(target, print).tokenizer.encode
        for prompt in (TEXT, f"{TEXT}{TEXT}", TEXT, f"{TEXT[:30]}!{TEXT[31:]}"):
            (again,) = raced(models, prompt, name, target=target)
            (fresh,) = raced(models, prompt, name.replace("session", "fresh"), target=target)
            assert again.message == fresh.message == ""
            assert again.tokens == fresh.tokens
            tokens = encode(prompt, chat=False)
            assert (again.reused, fresh.reused) == (common(before, tokens[:-1]), 0)
            new = len(tokens) - again.reused
            assert again.rows - again.drafted <= new + len(again.tokens) - 1
            before = [*tokens, *again.tokens]


def test_nobody_is_lent_a_session_that_is_not_theirs() -> None:
    models = LoadedModels()
    raced(models, TEXT, "kv", SESSION)
    assert len(models.sessions) == 1, "fresh columns keep none"
    others = (
        *raced(models, TEXT, SESSION, "kv"),  # in another place
        *raced(models, TEXT, "kv", SESSION, visitor="bob"),
        *raced(models, TEXT, "kv", SESSION, visitor=""),
        *raced(models, TEXT, "kv", SESSION, target=ModelSpec("fake-loop", "fake")),
    )
    assert [score.reused for score in others] == [0] * 8
    assert raced(models, TEXT, "kv", SESSION)[1].reused == len(TEXT) - 1


def use(sessions: Sessions, engine: FakeEngine, visitor: str, tokens: int) -> int:
    """How many tokens were known, of a text of so many."""
    place = Place(visitor, 0, "target", engine, keep=True)
    with sessions.session(place, range(tokens + 1), tokens + 1) as session:
        known = session.length
        new = range(known, tokens)
        session.forward(new, tuple(range(-1, len(new) - 1)), ())
        session.keep(range(len(new)))
    return known


def test_those_used_longest_ago_are_closed_for_room() -> None:
    engine = FakeEngine()
    sessions = Sessions(lambda *_: None, 120 * engine.row_bytes)
    visits = (("ann", 50), ("bob", 50), ("ann", 60), ("eve", 50), ("ann", 70), ("bob", 50))
    known = [use(sessions, engine, visitor, tokens) for visitor, tokens in visits]
    assert known == [0, 0, 50, 0, 60, 0], "there is room for two"
    assert use(sessions, engine, "ann", 110) == 70
    assert (engine.open_sessions, len(sessions)) == (1, 1), "no room for another one beside it"
    sessions.forget(engine)
    assert (engine.open_sessions, len(sessions)) == (0, 0)


def test_a_session_that_is_too_small_for_the_next_text_is_copied_into_a_larger_one() -> None:
    engine, opened = FakeEngine(), list[int]()
    plain = engine.open

    def note(rows: int = 0, layers: Layers = ()) -> Session:
        opened.append(rows)
        return plain(rows, layers)

    engine.open = note
    sessions = Sessions(lambda *_: None)
    lengths = (10, STEP - 2, STEP, STEP + 1)
    known = [use(sessions, engine, "ann", length) for length in lengths]
    assert known == [0, 10, STEP - 2, STEP]
    assert opened == [STEP, 2 * STEP]
    assert engine.open_sessions == 1


def test_a_column_that_fails_keeps_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    models = LoadedModels()
    raced(models, TEXT, SESSION)
    engine = fake(models)

    def broken(prefix: object) -> np.ndarray:
        raise ValueError("out of order")

    monkeypatch.setattr(engine, "logits", broken)
    assert raced(models, f"{TEXT}{TEXT}", SESSION)[0].message
    assert engine.open_sessions == len(models.sessions) == 0


def test_a_column_that_is_stopped_keeps_its_session() -> None:
    models, events = LoadedModels(), list[Event]()
    request = Request(TEXT * 9, 12, chat=False)
    race = Race(request, (parse_column(SESSION),), FAKE, visitor="ann")
    race.run(models, events.append, lambda: len(events) > 4)
    reused = [e.reused for e in events_of(race, models) if isinstance(e, Prepared)]
    assert reused[0] in range(64, len(TEXT) * 9, 64)
    assert fake(models).open_sessions == 1


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
    assert restored.reused == common(text, encode(prompt, chat=False)) > len(TEXT) // 5
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
    save_file(load_file(file), file, _identity(fake(models)) | changed)
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


def shared(*names: str, target: ModelSpec = FAKE, first: int | None = None) -> Race:
    return Race(SHARED, tuple(map(parse_column, names)), target, "ann", first=first)


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


@pytest.mark.parametrize("engine", ["openvino", "torch"])
@pytest.mark.model
def test_a_shared_prompt_changes_nothing_for_the_built_in_model_and_its_draft(engine: str) -> None:
    """The trained draft reads the target's hidden states, which are shared too."""
    names = ("stateless", "kv", "speculative:k=4", "lookahead:window=5")
    assert_nothing_changes(
        Race(Request(12 * TEXT, 24), tuple(map(parse_column, names)), ModelSpec(engine=engine))
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
    computed = rows(shared(*names, target=target, first=first), models)
    own_models = [parse_column(name).model.name for name in names]
    assert computed == rows(shared("kv", target=target), models) * own_models.count("")


def test_a_cache_that_holds_something_already_is_not_replaced() -> None:
    models, race = LoadedModels(), shared(SESSION, "kv")
    before = rows(race, models)
    assert rows(race, models) == before - TOKENS + 1 + FIRST_PASSES
