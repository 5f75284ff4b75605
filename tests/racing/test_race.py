"""A race puts strategies, engine and grammar together; one column's error stays in its column."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from races import FAKE, board_after, events_of

from backend.decoding.seams import Decision, Drafter
from backend.engines.fake import FakeEngine
from backend.errors import DerbyError
from backend.events import (
    Decided,
    Event,
    Failed,
    Finished,
    Prepared,
    Preparing,
    Started,
    Step,
)
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.strategies import registry
from backend.strategies.column import Column, default_column, parse_column
from backend.strategies.declaration import Strategy
from backend.strategies.registry import DEFAULT_COLUMNS
from backend.types import ModelSpec, Outcome, Request, Sampling

REQUEST = Request("Who is it?", max_new_tokens=60)
COLUMNS = tuple(map(parse_column, DEFAULT_COLUMNS))


@dataclass
class Loaded(LoadedModels):
    """Models that are at hand already."""

    engines: dict[str, FakeEngine]

    def __post_init__(self) -> None:
        super().__init__()

    def get(self, spec: ModelSpec, say: Callable[[str], None]) -> FakeEngine:
        say(f"Loading {spec.name}...")
        if spec.name not in self.engines:
            raise DerbyError(f"There is no {spec.name}.")
        return self.engines[spec.name]


def loaded(**changes: Any) -> Loaded:
    return Loaded({"fake": FakeEngine(**changes)})


def raced(
    columns: Sequence[Column],
    engines: LoadedModels | None = None,
    request: Request = REQUEST,
    stop_after: int = 10**9,
) -> tuple[list[Event], Scoreboard]:
    events: list[Event] = []
    race = Race(request, tuple(columns), FAKE)
    race.run(engines or LoadedModels(), events.append, lambda: len(events) >= stop_after)
    return events, board_after(columns, events)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_default_columns_run_to_the_end_and_the_lossless_ones_agree(temperature: float) -> None:
    engines = loaded()
    request = Request("Who?", max_new_tokens=60, sampling=Sampling(temperature, seed=5))
    events, board = raced([*COLUMNS, default_column("lookup")], engines, request)
    assert [score.state for score in board.scores] == ["done"] * 6
    assert board.ended
    for index, strategy in enumerate(board.columns):
        own = [event for event in events if getattr(event, "column", -1) == index]
        assert isinstance(own[0], Started)
        assert isinstance(own[-1], Finished)
        assert sum(isinstance(event, Finished) for event in own) == 1
        assert own[0].prompt_tokens == board.scores[index].prefilled
        if strategy.lossless and strategy.name != "kv":
            assert board.difference(index) is None
            assert board.compared(index)
    grammar = board.scores[4]
    assert grammar.text.lstrip().startswith("{"), "the grammar column writes JSON"
    assert engines.engines["fake"].open_sessions == 0


def test_compiling_a_grammar_counts_on_its_own_clock_alone() -> None:
    events, board = raced([default_column("kv"), default_column("grammar")])
    compiled = [e for e in events if isinstance(e, Prepared)]
    assert [(event.column, event.reused) for event in compiled] == [(1, 0)]
    assert board.scores[1].ttft >= compiled[0].seconds > 0


LONG = "x" * 1000
LENGTH = len(f"User: {LONG}\nAnswer: ")


@pytest.mark.parametrize("own_limit", [0, LENGTH], ids=["the model's", "the request's"])
def test_a_prompt_beyond_the_context_is_refused_before_it_is_read(own_limit: int) -> None:
    request = Request(LONG, max_new_tokens=60, context=own_limit)
    engines = loaded(max_context=4096 if own_limit else LENGTH)
    _, board = raced(list(map(default_column, ("kv", "stateless"))), engines, request)
    assert [score.state for score in board.scores] == ["failed"] * 2
    assert all("about 10 tokens" in score.message for score in board.scores)
    assert engines.engines["fake"].forwards == 0


@pytest.mark.parametrize("drafter", ["kv", "lookup", "speculative", "lookahead", "stateless"])
@pytest.mark.parametrize("room", [1, 2, 30, 59, 60])
def test_a_column_writes_until_its_context_is_full_to_the_last_position(
    drafter: str, room: int
) -> None:
    """Lookahead's window reaches past the last token, so it needs that much more."""
    plain = raced([default_column("kv")], loaded(), Request(LONG, max_new_tokens=60))[1].scores[0]
    assert len(plain.tokens) == 60
    strategy = default_column(drafter)
    engines = loaded(max_context=LENGTH + room + strategy.scratch_depth)
    score = raced([strategy], engines, Request(LONG, max_new_tokens=60))[1].scores[0]
    assert score.tokens == plain.tokens[:room]
    assert score.reason == ("token limit" if room == 60 else "context full")
    assert engines.engines["fake"].open_sessions == 0


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (ModelSpec("nothing", "fake"), "'nothing'"),
        (ModelSpec("fake", "abacus"), "'abacus'"),
    ],
)
def test_an_unknown_target_is_an_error_before_anything_runs(target: ModelSpec, said: str) -> None:
    events = events_of(Race(REQUEST, COLUMNS, target))
    failed = [event for event in events if isinstance(event, Failed)]
    assert [event.column for event in failed] == [0, 1, 2, 3, 4]
    assert all(said in event.message for event in failed)
    assert not any(isinstance(event, Started) for event in events)


def test_a_draft_with_another_vocabulary_is_refused_by_name() -> None:
    engines = loaded()
    other = FakeEngine(vocab_size=300)
    other.spec = ModelSpec("other", "fake")
    engines.engines["other"] = other
    columns = [default_column("kv"), parse_column("speculative:draft=other")]
    _, board = raced(columns, engines)
    assert [score.state for score in board.scores] == ["done", "failed"]
    assert "other on fake" in board.scores[1].message
    assert "another vocabulary" in board.scores[1].message
    assert other.open_sessions == engines.engines["fake"].open_sessions == 0


def test_one_token_at_a_time_what_guesses_is_refused_and_the_others_go_on() -> None:
    _, board = raced([*COLUMNS, default_column("lookup")], loaded(guesses="none"))
    for column, score in zip(board.columns, board.scores, strict=True):
        assert score.state == ("failed" if column.strategy.guesses else "done")
        said = f"{column.title} checks guesses, and fake on fake fp32 (CPU) computes one token at"
        assert score.message.startswith(said) or score.state == "done"


def test_where_a_pass_checks_a_chain_alone_the_others_guess_chains() -> None:
    guessing = ("lookup:k=6,ngram=1", "speculative:draft=near,k=4")
    columns = [*COLUMNS, *map(parse_column, guessing)]
    engine = FakeEngine(period=2, sharpness=4.0, guesses="chains")
    _, board = raced(columns, Loaded({"fake": engine, "near": engine}), Request("Who?", 300))
    for column, score in zip(board.columns, board.scores, strict=True):
        assert score.state == ("failed" if column.name == "lookahead" else "done"), score.message
        if column.lossless and score.state == "done":
            assert score.tokens == board.scores[1].tokens[: len(score.tokens)]
    assert min(score.accepted for score in board.scores[-2:]) > 0


def test_a_draft_that_cannot_take_a_guess_back_is_refused() -> None:
    columns = [default_column("kv"), parse_column("speculative:draft=other")]
    engines = loaded()
    engines.engines["other"] = FakeEngine(guesses="none")
    _, board = raced(columns, engines)
    assert [score.state for score in board.scores] == ["done", "failed"]
    assert "cannot take a guess back: choose another draft" in board.scores[1].message


def test_a_model_is_loaded_on_its_column_s_turn_while_no_clock_runs() -> None:
    engines = loaded()
    engines.engines["near"] = FakeEngine(salt=3)
    columns = [default_column("kv"), parse_column("speculative:draft=near"), default_column("kv")]
    events, board = raced(columns, engines)
    order = [e if isinstance(e, Preparing) else getattr(e, "column", -1) for e in events]
    assert order.index(0) < order.index(Preparing("Loading near...")) < order.index(2)
    for score in board.scores:
        assert score.state == "done"
        steps = [e for e in events if isinstance(e, Step) and e.column == board.scores.index(score)]
        assert score.seconds == pytest.approx(sum(step.seconds["total"] for step in steps))


@pytest.mark.parametrize("stop_after", [*range(24), 30])
def test_a_stop_ends_every_column_and_releases_everything(stop_after: int) -> None:
    engines = loaded()
    events, board = raced(COLUMNS, engines, stop_after=stop_after)
    assert board.ended
    assert sum(isinstance(event, Finished) for event in events) == len(COLUMNS)
    assert engines.engines["fake"].open_sessions == 0


def test_an_error_of_the_race_itself_ends_each_running_column_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Columns that had ended were failed as well, and a complete text was shown as an error."""

    def broken(race: Race, engines: LoadedModels, emit: Callable[[Event], None], stopped: object):
        emit(Finished(1, "token limit", []))
        emit(Failed(3, "Its own error."))
        raise ZeroDivisionError

    monkeypatch.setattr(Race, "run", broken)
    events = events_of(Race(REQUEST, COLUMNS, FAKE))
    assert sorted(event.column for event in events if isinstance(event, Finished | Failed)) == [
        *range(5)
    ]
    assert isinstance(events[0], Finished)
    assert all("ZeroDivisionError" in e.message for e in events[2:] if isinstance(e, Failed))


#: On a slow model, with a draft that costs nothing and is always right.
QUICK = "speculative:draft=fake,k=4"


@pytest.mark.parametrize("first", [None, 0], ids=["in turns", "alone"])
@pytest.mark.parametrize("other", [QUICK, "grammar", "kv:model=fake"])
def test_stateless_ends_at_the_photo_finish_of_the_plain_text(
    other: str, first: int | None
) -> None:
    """It kept everybody waiting: the winner was there at 37 s, the end at 56. A text of a grammar,
    or of another model, is no finish.
    """
    columns = tuple(map(parse_column, ("stateless", other)))
    slow = ModelSpec("fake-slow", "fake")
    events = events_of(Race(Request("Who?", 30), columns, slow, first=first))
    reasons = {event.column: event.reason for event in events if isinstance(event, Finished)}
    assert reasons[0] == ("photo finish" if other == QUICK else "token limit")
    assert reasons[1] in ("token limit", "end of text")


def test_columns_may_run_alone_one_after_another_whichever_is_first() -> None:
    together, alone = (
        events_of(Race(REQUEST, COLUMNS[1:4], FAKE, first=first), loaded()) for first in (None, 1)
    )
    order = [e.column for e in alone if isinstance(e, Started)]
    assert order == [1, 2, 0]
    seen = [e.column for e in alone if isinstance(e, Step)]
    assert seen == sorted(seen, key=order.index), "a column took turns with another"
    assert answers(together) == answers(alone)


def answers(events: Sequence[Event]) -> list[list[int]]:
    return [score.tokens for score in board_after(COLUMNS[1:4], events).scores]


class Undecided(Drafter):
    """Decides something else in every third step, and sums up."""

    steps = 0

    def observe(self, outcome: Outcome) -> None:
        self.steps += 1
        if self.steps % 3 == 0:
            self.decision = Decision({"step": self.steps})

    def conclude(self) -> None:
        self.decision = Decision({"k": self.steps}, 1.5, "why", ("this",))


def test_a_decision_comes_once_and_right_after_the_step_that_made_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strategy = Strategy("undecided", "x", "x", build=lambda _: Undecided())
    known = dict(registry.strategies()) | {"undecided": strategy}
    monkeypatch.setattr(registry, "_registered", lambda: (known, ()))
    events, _ = raced([parse_column("undecided"), parse_column("kv")])
    own = [event for event in events if getattr(event, "column", -1) == 0]
    decided = [(i, event) for i, event in enumerate(own) if isinstance(event, Decided)]
    *during, (last, final) = decided
    for i, event in during:
        assert event.settings == {"step": sum(isinstance(e, Step) for e in own[:i])}
        assert isinstance(own[i - 1], Step)
    assert len(during) == 60 // 3
    assert final == Decided(0, {"k": 60}, 1.5, "why", ["this"])
    assert last == len(own) - 2
    assert not any(isinstance(event, Decided) and event.column == 1 for event in events)
