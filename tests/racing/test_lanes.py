"""Columns of a library: one that takes turns is held between them, any other runs alone behind the
rest. An answer ends where one of ours does, a stop ends a library that waits, and an error fails
its own column.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from race_runs import FAKE, board_after, events_of, until

from backend.errors import DerbyError
from backend.events import Event, Finished, Repeated, Started, Step
from backend.libraries.library import Chunk, Emit, Library, Settings, StoppedError
from backend.racing.hosts import Host
from backend.racing.models import LoadedModels
from backend.racing.race import MOST_RUNS, Race
from backend.results.scoreboard import Scoreboard
from backend.strategies import registry
from backend.strategies.column import parse_column
from backend.strategies.declaration import Strategy
from backend.tokenizer import ByteTokenizer, Tokenizer
from backend.types import ModelSpec, Request

REQUEST = Request("Hello there", 24)
EOS = ByteTokenizer.EOS

#: What cannot be loaded.
NOWHERE = ModelSpec("nobody/nothing", "openvino")


@dataclass
class Model:
    """A library's model that writes what `script` emits. Without a tokenizer it gives text."""

    script: Callable[[Emit], None]
    tokenizer: Tokenizer | None = field(default_factory=ByteTokenizer)
    preparation: float = 0.0
    max_context: int = 0
    spec: ModelSpec | None = None
    weight_bytes: int = 0
    stops: int = 0

    def synchronize(self) -> None: ...

    def prepare(self, request: Request, settings: Settings) -> None:
        time.sleep(self.preparation)

    def answer(self, request: Request, settings: Settings, emit: Emit) -> None:
        self.script(emit)

    def stop(self) -> None:
        self.stops += 1


#: Makes a library of each name, which `takes_turns` or not.
Declare = Callable[..., None]


@pytest.fixture
def declare(monkeypatch: pytest.MonkeyPatch) -> Declare:
    def declared(takes_turns: bool, **models: Model) -> None:
        known = dict(registry.strategies())
        for name, model in models.items():
            library = Library(name, elsewhere=model, takes_turns=takes_turns)
            known[name] = Strategy(name, name, "A library.", verified=(), library=library)
        monkeypatch.setattr("backend.strategies.column.strategies", lambda: known)

    return declared


def raced(
    *columns: str,
    request: Request = REQUEST,
    target: ModelSpec = FAKE,
    stopped: Callable[[list[Event]], bool] = lambda _: False,
) -> tuple[list[Event], Scoreboard]:
    events: list[Event] = []
    race = Race(request, tuple(map(parse_column, columns)), target)
    Host(LoadedModels()).run(race, events.append, lambda: stopped(events))
    return events, board_after(race.columns, events)


def written(events: list[Event], column: int) -> int:
    return sum(isinstance(event, Step) and event.column == column for event in events)


def no_thread_goes_on() -> bool:
    return not any(each.name == "library" for each in threading.enumerate())


def endless(emit: Emit) -> None:
    while True:
        emit(Chunk((65,)))


@pytest.mark.parametrize("takes_turns", [True, False])
def test_a_library_that_fails_fails_alone(takes_turns: bool, declare: Declare) -> None:
    def fails(emit: Emit) -> None:
        emit(Chunk((97, 98)))
        raise DerbyError("The library has no room: free some.")

    declare(takes_turns, library=Model(fails))
    _, board = raced("library", "kv")
    assert [score.state for score in board.scores] == ["failed", "done"]
    assert board.scores[0].message == "The library has no room: free some."


ROUNDS = ((97, 98), (99, EOS, 100))


@pytest.mark.parametrize(
    ("request_", "tokens", "text", "reason"),
    [
        (Request("a"), [97, 98, 99, EOS], "abc", "end of text"),
        (Request("a", 5, ignore_eos=True), [97, 98, 99, EOS, 100], "abcd", "token limit"),
        (Request("a", 3), [97, 98, 99], "abc", "token limit"),
        (Request("a", stop=("bc",)), [97, 98, 99], "a", "stop string"),
    ],
)
@pytest.mark.parametrize("takes_turns", [True, False])
def test_an_answer_ends_where_one_of_ours_does(
    request_: Request,
    tokens: list[int],
    text: str,
    reason: str,
    takes_turns: bool,
    declare: Declare,
) -> None:
    """Within a round, too; no model is loaded for it, and the library gives up."""
    gave_up = threading.Event()

    def script(emit: Emit) -> None:
        try:
            for each in ROUNDS:
                emit(Chunk(each, drafted=4, accepted=3))
            endless(emit)
        except StoppedError:
            gave_up.set()
            raise

    declare(takes_turns, library=Model(script))
    _, board = raced("library", request=request_, target=NOWHERE)
    score = board.scores[0]
    assert (score.tokens, score.text, score.reason) == (tokens, text, reason)
    assert score.accepted <= len(tokens)
    assert gave_up.wait(10)


def test_a_library_that_takes_turns_is_held_between_them(declare: Declare) -> None:
    """It makes no progress outside its turns, and its clock counts these alone."""
    log: list[tuple[str, str]] = []
    worked = {"one": 0.0, "two": 0.0}

    def script(name: str) -> Callable[[Emit], None]:
        def rounds(emit: Emit) -> None:
            for _ in range(20):
                began = time.perf_counter()
                log.append((name, "begins"))
                time.sleep(0.01)
                log.append((name, "ends"))
                worked[name] += time.perf_counter() - began
                emit(Chunk((65,)))

        return rounds

    declare(True, **{name: Model(script(name), preparation=0.3) for name in worked})
    start = time.perf_counter()
    _, board = raced("one", "two")
    wall = time.perf_counter() - start
    for (begun, _), (finished, _) in zip(log[::2], log[1::2], strict=True):
        assert begun == finished, "one computed while the other did"
    assert sum(a[0] != b[0] for a, b in pairwise(log)) > 4, "they take turns"
    for score, seconds in zip(board.scores, worked.values(), strict=True):
        assert seconds <= score.seconds
    clocks = sum(score.seconds for score in board.scores)
    assert clocks <= wall - 0.3, "neither the other's work nor the loading"


def test_libraries_that_cannot_be_held_run_alone_before_the_others_and_behind_them(
    declare: Declare,
) -> None:
    def script(emit: Emit) -> None:
        emit(Chunk(text="ab", count=2, seconds=0.5))
        emit(Chunk(text="c", count=1, seconds=0.2, finish="end of text"))

    declare(False, one=Model(script, None), two=Model(script, None))
    events, board = raced("one", "kv", "two", "lookup")
    order = [e.column for e in events if isinstance(e, Started | Repeated | Finished)]
    assert order[:2] == [0, 2]
    assert set(order[2:6]) == {1, 3}
    assert order[6:] == [0, 2] * MOST_RUNS, "their other runs in turns, and then their ends"
    assert [board.scores[i].seconds for i in (0, 2)] == [0.7, 0.7], "by the library's clock"
    assert board.scores[0].repeats == [Repeated(0, [0.2], [1])] * (MOST_RUNS - 1)
    once = Race(REQUEST, tuple(map(parse_column, ("one", "kv"))), FAKE, alone_from=1)
    order = [e.column for e in events_of(once) if isinstance(e, Started | Repeated | Finished)]
    assert order == [1, 1, 0, 0], "where every column runs alone, none does so again"


@pytest.mark.parametrize("first", [(), (65, 66)])
def test_a_stop_ends_a_library_that_waits(first: tuple[int, ...], declare: Declare) -> None:
    """Whether it has written or not; and the one behind it does not begin."""
    begun, waits, later = threading.Event(), threading.Event(), Model(endless)

    def script(emit: Emit) -> None:
        if first:
            emit(Chunk(first))
        begun.set()
        waits.wait()

    model = Model(script)
    declare(False, slow=model, later=later)

    def stopped(events: list[Event]) -> bool:
        return begun.is_set() and written(events, 1) == bool(first)

    events, board = raced("kv", "slow", "later", stopped=stopped)
    waits.set()
    assert [score.reason for score in board.scores[1:]] == ["stopped"] * 2
    assert board.scores[1].text == bytes(first).decode()
    assert not any(isinstance(each, Started) and each.column == 2 for each in events)
    assert (model.stops, later.stops) == (1, 0)
    until(no_thread_goes_on)


@pytest.mark.parametrize("takes_turns", [True, False])
def test_a_library_s_answer_ends_where_the_context_does_for_all(
    takes_turns: bool, declare: Declare
) -> None:
    """Also where the request ends it: the library wrote on to the token limit."""
    declare(takes_turns, library=Model(endless, max_context=4096))
    request = Request("Hello there", 400, context=100)
    _, board = raced("library", "kv", "lookahead", request=request)
    ends = [(score.reason, score.length) for score in board.scores]
    assert ends == [("context full", ends[1][1])] * 3


def test_what_a_library_cannot_answer_is_refused(declare: Declare) -> None:
    """A program, which only our loop can run; and a prompt that fills the context."""
    declare(True, library=Model(endless), small=Model(endless, max_context=4))
    _, board = raced("library", request=Request("A {{gen 'word'}} b"))
    assert "cannot run programs" in board.scores[0].message
    _, board = raced("small")
    assert "the context holds 4" in board.scores[0].message
