"""A session that is kept open, or saved in a file: the next text computes only what is new in it,
and is the text that an empty cache gives.
"""

from dataclasses import replace
from pathlib import Path

import families
import numpy as np
import pytest
from races import FAKE
from safetensors.numpy import load_file, save_file

from backend.engines.fake import FakeEngine
from backend.engines.session import Session
from backend.events import Event, Prepared
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.racing.sessions import STEP, Place, Sessions, _identity
from backend.results.scoreboard import Score, Scoreboard
from backend.strategies.column import parse_column
from backend.types import Layers, ModelSpec, Request

TEXT = "One fox saw two foxes, and one of the two foxes saw one. "
SESSION = "kv:cache=session"


def asked(prompt: str = TEXT, tokens: int = 12) -> Request:
    return Request(prompt, tokens, chat=False)


def raced(
    models: LoadedModels,
    request: Request,
    *names: str,
    target: ModelSpec = FAKE,
    visitor: str = "ann",
    save: Path | None = None,
    restore: Path | None = None,
) -> list[Score]:
    columns = tuple(map(parse_column, names))
    board = Scoreboard(columns)
    race = Race(request, columns, target, visitor=visitor, save_cache=save, restore_cache=restore)
    race.run(models, board.add, lambda: False)
    return list(board.scores)


def fake(models: LoadedModels, name: str = "fake") -> FakeEngine:
    engine = models.get(ModelSpec(name, "fake"), print)
    assert isinstance(engine, FakeEngine)
    return engine


def assert_only_new_is_computed(models: LoadedModels, target: ModelSpec, name: str) -> None:
    """Of a longer prompt, of a shorter one, and of one that parts ways in the middle."""
    encode = models.get(target, print).tokenizer.encode
    before: list[int] = []
    for prompt in (TEXT, f"{TEXT}{TEXT}", TEXT, f"{TEXT[:30]}!{TEXT[31:]}"):
        request = asked(prompt)
        (kept,) = raced(models, request, name, target=target)
        (fresh,) = raced(models, request, name.replace("session", "fresh"), target=target)
        assert kept.message == fresh.message == ""
        assert kept.tokens == fresh.tokens
        tokens = encode(prompt, chat=False)
        alike = [a == b for a, b in zip(before, tokens[:-1], strict=False)]
        common = alike.index(False) if False in alike else len(alike)
        assert kept.reused == common
        assert fresh.reused == 0
        assert kept.rows - kept.drafted <= len(tokens) - common + len(kept.tokens) - 1
        before = [*tokens, *kept.tokens]


NAMES = (SESSION, "lookup:k=3,cache=session", "speculative:draft=fake-draft,k=3,cache=session")


@pytest.mark.parametrize("name", NAMES)
def test_a_second_run_computes_what_is_new(name: str) -> None:
    assert_only_new_is_computed(LoadedModels(), FAKE, name)


def test_a_second_run_computes_what_is_new_on_torch(tmp_path: Path) -> None:
    spec = ModelSpec(str(families.make("llama", tmp_path)), "torch")
    assert_only_new_is_computed(LoadedModels(), spec, SESSION)


@pytest.mark.model
def test_a_second_run_computes_what_is_new_on_openvino() -> None:
    assert_only_new_is_computed(LoadedModels(), ModelSpec(), SESSION)


def test_nobody_is_lent_a_session_that_is_not_theirs() -> None:
    models = LoadedModels()
    raced(models, asked(), "kv", SESSION)
    assert len(models.sessions) == 1, "fresh columns keep none"
    others = (
        *raced(models, asked(), SESSION, "kv"),  # in another place
        *raced(models, asked(), "kv", SESSION, visitor="bob"),
        *raced(models, asked(), "kv", SESSION, visitor=""),
        *raced(models, asked(), "kv", SESSION, target=ModelSpec("fake-loop", "fake")),
    )
    assert [score.reused for score in others] == [0] * 8
    assert raced(models, asked(), "kv", SESSION)[1].reused == len(TEXT) - 1


def test_a_model_that_leaves_memory_closes_its_sessions() -> None:
    models = LoadedModels(budget=1_500_000)  # for one fake model
    raced(models, asked(), SESSION)
    first = fake(models)
    raced(models, asked(), SESSION, target=ModelSpec("fake-loop", "fake"))
    assert (first.open_sessions, len(models.sessions)) == (0, 1)


def test_those_used_longest_ago_are_closed_for_room() -> None:
    engine = FakeEngine()
    sessions = Sessions(lambda *_: None, 120 * engine.row_bytes)

    def use(visitor: str, tokens: int = 50) -> int:
        """How many tokens were known, of a text of so many."""
        place = Place(visitor, 0, "target", engine, keep=True)
        with sessions.session(place, range(tokens + 1), tokens + 1) as session:
            known = session.length
            new = range(known, tokens)
            session.forward(new, tuple(range(-1, len(new) - 1)), ())
            session.keep(range(len(new)))
        return known

    assert [use("ann"), use("bob"), use("ann", 60)] == [0, 0, 50]
    assert use("eve") == 0, "there is room for two"
    assert (engine.open_sessions, use("ann", 70)) == (2, 60)
    assert use("bob") == 0
    assert use("ann", 110) == 70
    assert (engine.open_sessions, len(sessions)) == (1, 1), "no room for another one beside it"


def test_a_session_that_is_too_small_for_the_next_text_is_copied_into_a_larger_one() -> None:
    engine, opened = FakeEngine(), list[int]()
    plain = engine.open

    def note(rows: int = 0, layers: Layers = ()) -> Session:
        opened.append(rows)
        return plain(rows, layers)

    engine.open = note
    sessions = Sessions(lambda *_: None)
    for tokens, known in ((10, 0), (STEP - 1, 10), (STEP + 1, STEP - 1), (STEP + 1, STEP)):
        with sessions.session(
            Place("ann", 0, "target", engine, keep=True), range(tokens), tokens
        ) as session:
            assert session.length == min(known, tokens - 1)
            new = range(session.length, tokens)
            session.forward(new, tuple(range(-1, len(new) - 1)), ())
            session.keep(range(len(new)))
    assert opened == [STEP, 2 * STEP]
    assert engine.open_sessions == 1


def test_a_column_that_fails_keeps_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    models = LoadedModels()
    raced(models, asked(), SESSION)
    engine = fake(models)

    def broken(prefix: object) -> np.ndarray:
        raise ValueError("out of order")

    monkeypatch.setattr(engine, "logits", broken)
    assert raced(models, asked(f"{TEXT}{TEXT}"), SESSION)[0].message
    assert engine.open_sessions == len(models.sessions) == 0


def test_a_column_that_is_stopped_keeps_its_session() -> None:
    models, events = LoadedModels(), list[Event]()
    race = Race(asked(TEXT * 9), (parse_column(SESSION),), FAKE, visitor="ann")
    race.run(models, events.append, lambda: len(events) > 4)
    events.clear()
    race.run(models, events.append, lambda: False)
    reused = [event.reused for event in events if isinstance(event, Prepared)]
    assert reused[0] in range(64, len(TEXT) * 9, 64)
    assert fake(models).open_sessions == 1


def assert_restored_exactly(models: LoadedModels, target: ModelSpec, folder: Path) -> None:
    file = folder / "one.safetensors"
    encode = models.get(target, print).tokenizer.encode
    (saved,) = raced(models, asked(), "kv", target=target, save=file)
    prompt = f"{TEXT}{saved.text} And then"
    (found, stateless) = raced(
        models, asked(prompt), "kv", "stateless", target=target, restore=file
    )
    (alone,) = raced(models, asked(prompt), "kv", target=target)
    assert found.tokens == alone.tokens
    assert stateless.reused == 0
    tokens, text = encode(prompt, chat=False), [*encode(TEXT, chat=False), *saved.tokens]
    alike = [a == b for a, b in zip(text[:-1], tokens, strict=False)]
    assert found.reused == (alike.index(False) if False in alike else len(alike)) > len(TEXT) // 5
    assert found.rows == alone.rows - found.reused


def test_a_saved_cache_is_restored_exactly(tmp_path: Path) -> None:
    assert_restored_exactly(LoadedModels(), FAKE, tmp_path)


def test_a_saved_cache_is_restored_exactly_on_torch(tmp_path: Path) -> None:
    spec = ModelSpec(str(families.make("llama", tmp_path)), "torch")
    assert_restored_exactly(LoadedModels(), spec, tmp_path)


@pytest.mark.model
def test_a_saved_cache_is_restored_exactly_on_openvino(tmp_path: Path) -> None:
    assert_restored_exactly(LoadedModels(), ModelSpec(), tmp_path)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": "another"}, "The saved cache is of model 'another'"),
        ({"precision": "int4"}, "of precision 'int4', and this column's is 'fp32'"),
        ({"engine": "torch"}, "of engine 'torch', and this column's is 'fake'"),
        ({"format": "decode-derby-cache-1"}, "holds no cache that --save-cache wrote"),
    ],
)
def test_another_model_s_cache_is_refused(
    tmp_path: Path, changed: dict[str, str], said: str
) -> None:
    models, file = LoadedModels(), tmp_path / "one.safetensors"
    raced(models, asked(), "kv", save=file)
    save_file(load_file(file), file, _identity(fake(models)) | changed)
    (score,) = raced(models, asked(), "kv", restore=file)
    assert said in score.message
    assert score.message.count(". ") == 0


def test_the_first_column_that_keeps_a_cache_is_saved(tmp_path: Path) -> None:
    models, file = LoadedModels(), tmp_path / "one.safetensors"
    raced(models, asked(), "stateless", "kv", "lookup", save=file)
    assert load_file(file)["tokens"].tolist()[: len(TEXT)] == list(TEXT.encode())
    assert list(tmp_path.iterdir()) == [file]
    race = Race(asked(), (parse_column("stateless"),), FAKE)
    assert race.saved_column is None
    assert replace(race, columns=(*race.columns, parse_column("kv"))).saved_column == 1
