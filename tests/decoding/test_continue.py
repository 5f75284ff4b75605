"""Going on from where a column stopped: the same text as if it had never stopped."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backend.engines.base import Engine
from backend.engines.fake import FakeEngine
from backend.errors import DerbyError
from backend.events import Event
from backend.kvcache.column_caches import Caches
from backend.kvcache.snapshots import StoredCache
from backend.kvcache.sources import Visitor
from backend.racing.commands import SaveColumn, run_to_end
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.metrics import Score
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import Column, default_column, parse_column
from backend.types import AnswerSoFar, ModelSpec, Request, Sampling, chain_parents

FAKE = ModelSpec("fake", "fake")
RECURRENT = ModelSpec("fake-recurrent", "fake")
COLUMNS = ("kv", "stateless", "speculative:k=3", "lookahead", "lookup", "grammar")

#: Each column on the model that it runs on: all of them, and those without trees on a recurrent
#: model, one with a recurrent draft that mostly errs.
DRAFTED = "speculative:k=3,draft=fake-recurrent"
CASES = [(name, FAKE) for name in COLUMNS] + [
    (name, RECURRENT) for name in (*COLUMNS, DRAFTED) if name != "lookahead"
]


def play(race: Race, engines: LoadedModels, most: int = 1 << 30) -> Scoreboard:
    """Run a race, stopping it after `most` events."""
    board, events = Scoreboard(race.columns), list[Event]()

    def emit(event: Event) -> None:
        events.append(event)
        board.add(event)

    run_to_end(race, engines, emit, lambda: len(events) >= most)
    return board


def column(name: str) -> Column:
    return parse_column(name).limited(0)


def asked(
    tokens: int, temperature: float, name: str, target: ModelSpec = FAKE, **more: object
) -> Race:
    request = Request("Tell me about the sea", tokens, Sampling(temperature, seed=3))
    return Race(replace(request, **more), (column(name),), target, scope=Visitor("me"))


def on(race: Race, score: Score, tokens: int) -> Race:
    """The race that goes on for so many tokens more."""
    request = replace(race.request, max_new_tokens=tokens)
    return replace(race, request=request, earlier=(score.answer_so_far,))


def save(race: Race, score: Score, engines: LoadedModels) -> Score:
    """What came of saving the race's column where it stopped."""
    board = Scoreboard(race.columns)
    run_to_end(SaveColumn(race, 0, score.answer_so_far), engines, board.add, lambda: False)
    return board.scores[0]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(("name", "target"), CASES)
def test_an_answer_in_parts_is_the_answer_in_one(
    name: str, target: ModelSpec, temperature: float
) -> None:
    engines = LoadedModels()
    whole = play(asked(40, temperature, name, target), LoadedModels()).scores[0]
    race = asked(9, temperature, name, target)
    score = play(race, engines).scores[0]
    for tokens in (1, 13, 17):
        race = on(race, score, tokens)
        score = play(race, engines).scores[0]
    assert score.state == "done", score.message
    assert (score.tokens, score.text, score.reason) == (whole.tokens, whole.text, whole.reason)


def test_an_answer_that_promises_a_distribution_goes_on_the_same_way_each_time() -> None:
    """Not to the text in one: which of its tokens were drafted is another matter then, and the text
    depends on that.
    """
    name = "speculative:draft=fake-draft,k=3,promise=distribution"
    texts: list[list[int]] = []
    for _ in range(2):
        engines = LoadedModels()
        race = asked(9, 0.8, name)
        score = play(race, engines).scores[0]
        for tokens in (1, 13):
            race = on(race, score, tokens)
            score = play(race, engines).scores[0]
        assert score.state == "done", score.message
        assert not score.keeps_text
        texts.append(score.tokens)
    assert texts[0] == texts[1]
    assert len(texts[0]) == 23


@pytest.mark.parametrize(("name", "target"), [case for case in CASES if case[0] != "stateless"])
def test_nothing_is_computed_twice(name: str, target: ModelSpec) -> None:
    """Only the last token, which never was in the cache, is left of prompt and answer."""
    engines = LoadedModels()
    race = asked(9, 0.0, name, target)
    first = play(race, engines).scores[0]
    score = play(on(race, first, 1), engines).scores[0]
    assert score.reused == first.prompt_tokens + 9 - 1
    assert score.rows == 1


@pytest.mark.parametrize("events", [1, 2, 3, 5, 6, 8])
@pytest.mark.parametrize(
    ("name", "target"), [("speculative:k=3", FAKE), (DRAFTED, RECURRENT)], ids=str
)
def test_a_stopped_race_goes_on_to_the_same_text(name: str, target: ModelSpec, events: int) -> None:
    whole = play(asked(30, 0.5, name, target), LoadedModels()).scores[0]
    engines = LoadedModels()
    race = asked(30, 0.5, name, target)
    stopped = play(race, engines, events).scores[0]
    again = on(race, stopped, 30 - len(stopped.tokens))
    assert play(again, engines).scores[0].tokens == whole.tokens


@pytest.mark.parametrize("limit", [6, 128, 4000])
def test_a_stopped_race_goes_on_for_as_many_tokens_as_are_asked_for(limit: int) -> None:
    """Stopped at 46 of 128 it ran to 256, and stopped at 692 of 8,192 it was refused."""
    models = LoadedModels()
    race = asked(limit, 0.5, "kv")
    stopped = play(race, models, 8).scores[0]
    score = play(on(race, stopped, 20), models).scores[0]
    assert score.earlier == len(stopped.tokens) > 0
    assert len(score.tokens) == score.earlier + 20
    assert score.reused == stopped.prompt_tokens + score.earlier - 1, "it was stopped, not lost"
    assert score.reason == "token limit"


def test_a_text_that_has_ended_does_not_go_on() -> None:
    race = asked(4000, 0.0, "kv")
    engines = LoadedModels()
    first = play(race, engines).scores[0]
    assert first.reason == "end of text"
    second = play(on(race, first, 50), engines).scores[0]
    assert (second.tokens, second.reason) == (first.tokens, "end of text")


def test_what_one_visitor_left_no_other_finds_nor_who_did_not_ask_for_it() -> None:
    engines = LoadedModels()
    ours = asked(9, 0.0, "kv:cache=session")
    play(ours, engines)
    again = play(ours, engines).scores[0]
    other = play(replace(ours, scope=Visitor("you")), engines).scores[0]
    alone = play(asked(9, 0.0, "kv"), engines).scores[0]
    assert again.reused == again.prompt_tokens - 1
    assert (other.reused, alone.reused) == (0, 0)


@pytest.mark.parametrize(("name", "target"), [case for case in CASES if case[0] != "stateless"])
def test_a_saved_column_goes_on_in_another_process(
    name: str, target: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path))
    whole = play(asked(40, 0.8, name, target), LoadedModels()).scores[0]
    engines = LoadedModels()
    race = asked(15, 0.8, name, target)
    score = play(race, engines).scores[0]
    saved = save(race, score, engines)
    assert saved.snapshot, saved.message
    # New engines share nothing with the old ones but the disk.
    going_on = replace(on(race, score, 25), earlier=(AnswerSoFar(snapshot=saved.snapshot),))
    restored = play(going_on, LoadedModels()).scores[0]
    assert (restored.tokens, restored.text) == (whole.tokens, whole.text)
    assert restored.reused == score.prompt_tokens + 15 - 1


def test_a_snapshot_of_another_model_names_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path))
    engines = LoadedModels()
    race = asked(9, 0.0, "kv")
    score = play(race, engines).scores[0]
    saved = save(race, score, engines).snapshot
    other = replace(
        race, target=ModelSpec("fake-draft", "fake"), earlier=(AnswerSoFar(snapshot=saved),)
    )
    failed = play(other, LoadedModels()).scores[0]
    assert failed.state == "failed"
    assert FakeEngine(salt=0).fingerprint in failed.message
    assert FakeEngine(salt=7).fingerprint in failed.message


def test_saving_what_is_no_longer_held_says_so() -> None:
    race = asked(9, 0.0, "kv")
    engines = LoadedModels()
    score = play(race, engines).scores[0]
    engines.prefixes.forget(Visitor("me"))
    assert "no longer in memory" in save(race, score, engines).message


def test_a_full_context_ends_the_answer_and_says_so() -> None:
    score = play(asked(200, 0.0, "kv", context=64), LoadedModels()).scores[0]
    assert score.reason == "context full"
    assert score.prompt_tokens + len(score.tokens) == 64


@pytest.mark.parametrize(("name", "target"), [case for case in CASES if case[0] != "grammar"])
def test_after_a_shift_every_token_follows_from_what_is_left(name: str, target: ModelSpec) -> None:
    """The definition: each token is chosen from the logits of the shifted text, and of no other."""
    race = asked(150, 0.0, name, target, context=72, shift=True)
    score = play(race, LoadedModels()).scores[0]
    assert score.shifts, score.reason
    engine = FakeEngine()
    prompt = engine.tokenizer.encode(race.request.prompt, chat=True)
    for count, token in enumerate(score.tokens):
        shifts = [s for s in score.answer_so_far.shifts if s[0] <= count]
        seen = AnswerSoFar(tuple(score.tokens[:count]), tuple(shifts)).context(prompt)
        assert len(seen) <= 72
        assert token == int(engine.logits(seen).argmax())
    kept = len(b"User: ")
    assert all(shift.sink == kept for shift in score.shifts)


def test_a_shifted_answer_goes_on_again_and_again() -> None:
    """What was dropped before an earlier Continue was forgotten by the next one: the text was
    right, because it was shifted anew, but all of it was computed again.
    """
    engines = LoadedModels()
    race = asked(110, 0.7, "kv", context=72, shift=True)
    score = play(race, engines).scores[0]
    for _ in range(3):
        race = on(race, score, 10)
        before, score = score, play(race, engines).scores[0]
        assert score.shifts[: len(before.shifts)] == [
            replace(s, text="", seconds=0.0) for s in before.shifts
        ]
        prompt = before.prompt_tokens + len(before.tokens)
        assert score.reused == prompt - before.answer_so_far.dropped - 1
    whole = play(asked(140, 0.7, "kv", context=72, shift=True), LoadedModels()).scores[0]
    assert score.tokens == whole.tokens


def test_a_shifted_answer_goes_on_from_disk_with_what_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cache was held against the text as it was before anything was dropped, and computed
    again.
    """
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path))
    engines, race = LoadedModels(), asked(110, 0.7, "kv", context=72, shift=True)
    score = play(race, engines).scores[0]
    assert score.shifts
    saved = AnswerSoFar(snapshot=save(race, score, engines).snapshot)
    restored = play(replace(on(race, score, 30), earlier=(saved,)), LoadedModels()).scores[0]
    written = score.prompt_tokens + len(score.tokens)
    assert restored.reused == written - score.answer_so_far.dropped - 1
    whole = play(asked(140, 0.7, "kv", context=72, shift=True), LoadedModels()).scores[0]
    assert restored.tokens == whole.tokens


def test_a_column_is_saved_whose_draft_read_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft with fewer positions than the prompt left no cache: "no longer in memory: run it
    again" helped nobody.
    """
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path))
    name, engines = "speculative:k=3,draft=fake-draft", LoadedModels()
    race = asked(15, 0.8, name)
    score = play(race, engines).scores[0]
    draft = engines.get(ModelSpec("fake-draft", "fake"), print)
    whole = Caches.stored

    def stored(self: Caches, engine: Engine, context: Sequence[int], least: int) -> StoredCache:
        if engine is draft:
            raise DerbyError("The cache of this column is no longer in memory: run it again.")
        return whole(self, engine, context, least)

    monkeypatch.setattr(Caches, "stored", stored)
    saved = save(race, score, engines)
    assert saved.snapshot, saved.message
    earlier = (AnswerSoFar(snapshot=saved.snapshot),)
    restored = play(replace(on(race, score, 25), earlier=earlier), LoadedModels()).scores[0]
    assert restored.tokens == play(asked(40, 0.8, name), LoadedModels()).scores[0].tokens


@pytest.mark.thorough
@pytest.mark.model
def test_after_a_shift_the_built_in_model_writes_what_the_rest_of_the_text_demands() -> None:
    engines = LoadedModels(idle_warm_up=True)
    request = Request("Tell me how the tide works.", 60, context=96, shift=True)
    score = play(Race(request, (column("kv"),), ModelSpec()), engines).scores[0]
    engine = engines.get(ModelSpec(), lambda text: None)
    prompt = engine.tokenizer.encode(request.prompt, chat=True)
    shifts = score.answer_so_far.shifts
    assert shifts
    for at, _, _ in shifts:
        for count in range(at, min(at + 4, len(score.tokens))):
            done = tuple(s for s in shifts if s[0] <= count)
            seen = AnswerSoFar(tuple(score.tokens[:count]), done).context(prompt)
            session = engine.open()
            logits = session.forward(seen, chain_parents(len(seen)), (len(seen) - 1,))
            session.close()
            assert score.tokens[count] == int(logits[0].argmax())


def _new(data: st.DataObject) -> Race:
    """A race of one column; a small context that shifts only where steps are single tokens."""
    target = data.draw(st.sampled_from([FAKE, RECURRENT]))
    last = "lookahead" if target == FAKE else DRAFTED
    name = data.draw(st.sampled_from(["kv", "kv", "speculative:k=3", "lookup", last]))
    race = asked(data.draw(st.integers(1, 40)), 0.6, name, target)
    if name == "kv" and data.draw(st.booleans()):
        race = replace(race, request=replace(race.request, context=48, shift=True))
    prompt = data.draw(st.sampled_from(["The sea", "The sea is", "The sea is deep", "A"]))
    values = {"cache": data.draw(st.sampled_from(["call", "session"]))}
    return replace(
        race,
        request=replace(race.request, prompt=prompt),
        columns=(race.columns[0].with_settings(values),),
        scope=Visitor(data.draw(st.sampled_from(["me", "you"]))),
    )


def _saved(race: Race, score: Score, engines: LoadedModels) -> AnswerSoFar:
    """Where the column stands on disk; in memory still, if its cache was evicted."""
    saved = save(race, score, engines)
    assert saved.snapshot or "no longer in memory" in saved.message
    return AnswerSoFar(snapshot=saved.snapshot) if saved.snapshot else score.answer_so_far


# All examples may write to one folder; no test after them may, or it would prepare models there.
@settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_any_sequence_of_uses_equals_a_recompute_from_scratch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    """Run, borrow, fork, continue, evict, save and load, and shift, in any order."""
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path))
    engines = LoadedModels()
    left: list[tuple[Race, Score]] = []
    for _ in range(data.draw(st.integers(2, 7))):
        act = data.draw(st.sampled_from(["run", "continue", "load", "evict"]))
        if act == "evict":
            engines.prefixes.budget = data.draw(st.sampled_from([0, 2000, 1 << 20]))
            engines.prefixes.forget(Visitor(data.draw(st.sampled_from(["me", "you"]))))
            continue
        race, written = _new(data), 0
        if act != "run" and left:
            before, score = data.draw(st.sampled_from(left))  # the same one twice: a fork
            race = on(before, score, data.draw(st.integers(1, 20)))
            written = len(score.tokens)
            if act == "load":
                race = replace(race, earlier=(_saved(before, score, engines),))
        score = play(race, engines).scores[0]
        total = written + race.request.max_new_tokens
        whole = replace(race.request, max_new_tokens=total)
        plain = Race(whole, (default_column("kv"),), FAKE)
        assert score.tokens == play(plain, LoadedModels()).scores[0].tokens, score.message
        left.append((race, score))


@pytest.mark.thorough
@pytest.mark.model
@pytest.mark.parametrize("engine", ["openvino", "torch"])
@pytest.mark.parametrize("name", ["kv", "speculative", "lookahead", "lookup", "grammar"])
def test_real_engines_go_on_exactly_from_disk(
    engine: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = ModelSpec(engine=engine)
    loaded = LoadedModels(idle_warm_up=True)
    loaded.get(target, lambda text: None)
    request = Request("How does the tide work?", 24, Sampling(0.7, seed=1))
    whole = play(Race(request, (column(name),), target), loaded).scores[0]
    race = Race(replace(request, max_new_tokens=10), (column(name),), target, scope=Visitor("me"))
    score = play(race, loaded).scores[0]
    # The models stay where they are; the snapshots go to a folder of their own.
    monkeypatch.setattr("backend.kvcache.snapshots.cache_dir", lambda: tmp_path)
    saved = save(race, score, loaded)
    assert saved.snapshot, saved.message
    loaded.prefixes.forget(Visitor("me"))
    going_on = replace(on(race, score, 14), earlier=(AnswerSoFar(snapshot=saved.snapshot),))
    restored = play(going_on, loaded).scores[0]
    assert restored.tokens == whole.tokens
    assert restored.reused == score.prompt_tokens + len(score.tokens) - 1
