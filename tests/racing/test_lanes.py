"""Columns that are no loop over a local model: a recording, and a server that streams text."""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from races import FAKE, board_after, events_of

from backend.cli.tables import summary
from backend.decoding.lane import Lane, polled
from backend.errors import DerbyError
from backend.events import Event, Failed, Finished, Started, Step
from backend.plugins import load_declared
from backend.racing.commands import run_to_end
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.results.sentences import headline, reason, verdict
from backend.strategies import registry
from backend.strategies.column import parse_column
from backend.strategies.declaration import Strategy
from backend.strategies.settings import TextLine
from backend.types import ModelSpec, Request
from backend.web.view import view

REQUEST = Request("Hello there", 24)

#: What the recorded column replays.
RECORDED: list[Event] = []


def replay(column: int, request: Request, values: Mapping[str, Any]) -> Lane:
    events: Iterator[Event | None] = (replace(event, column=column) for event in RECORDED)
    return Lane(column, events, alone=True)


def stream(column: int, request: Request, values: Mapping[str, Any]) -> Lane:
    """A server that sends text, piece by piece, and nothing else: no token ids, no logits."""
    if values["address"] == "down":
        raise DerbyError("The server down does not answer: start it.")

    def events() -> Iterator[Event]:
        yield Started(column, 0, values["address"])
        for number, piece in enumerate(("Once ", "upon ", "a ", "time")):
            if values["address"] == "breaks" and number == 2:
                raise DerbyError("The server broke off: try again.")
            seconds = {"total": 0.01, "draft": 0.0, "mask": 0.0, "forward": 0.01, "rest": 0.0}
            yield Step(column, [], ["sampled"], [], [["sampled", piece]], 0, 0, 0, seconds)
        yield Finished(column, "end of text", [])

    return Lane(column, polled(events()), alone=True)


RECORDING = Strategy("recording", "Recording", "A race that was run before.", lane=replay)
STREAM = Strategy(
    "stream",
    "Stream",
    "A server elsewhere that streams what it writes.",
    settings=(TextLine("address", "Address", "Where it listens.", "somewhere"),),
    verified=(),
    lane=stream,
)


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = (*registry.OURS, RECORDING, STREAM)
    known = load_declared("decode_derby.none", Strategy, ours)
    monkeypatch.setattr(registry, "_registered", lambda: known)


def raced(*texts: str, target: ModelSpec = FAKE) -> tuple[list[Event], Scoreboard]:
    race = Race(REQUEST, tuple(map(parse_column, texts)), target)
    events = events_of(race)
    return events, board_after(race.columns, events)


def record() -> None:
    RECORDED[:] = [e for e in raced("kv")[0] if getattr(e, "column", None) == 0]


def test_a_recording_races_beside_the_column_that_it_was_made_of() -> None:
    """The scheduler, the scoreboard and every sentence take it like any other column."""
    record()
    _, board = raced("kv", "recording", "lookup:k=3")
    assert [score.state for score in board.scores] == ["done"] * 3
    assert board.scores[1].tokens == board.scores[0].tokens
    assert board.scores[1].seconds == pytest.approx(sum(_seconds(e) for e in RECORDED))
    assert verdict(board, 1).startswith("identical to KV reuse")
    assert board.speedup(1) > 0


def _seconds(event: Event) -> float:
    if isinstance(event, Step):
        return event.seconds["total"]
    return getattr(event, "seconds", 0.0)


def test_a_stream_without_tokens_or_logits_is_shown_as_far_as_it_is_known() -> None:
    _, board = raced("kv", "stream:address=there")
    score = board.scores[1]
    assert (score.state, score.text, score.tokens) == ("done", "Once upon a time", [])
    assert headline(board)
    reason(board, 1)
    assert not verdict(board, 1).startswith(("identical", "differs"))
    shown = view(board, race=1, goal=24)
    assert shown["columns"][1]["state"] == "done"
    assert shown["columns"][1]["status"] == "", "nothing is known of whose text it is"
    assert summary(board).row_count == 2


@pytest.mark.parametrize("address", ["down", "breaks"])
def test_a_lane_that_fails_fails_alone(address: str) -> None:
    _, board = raced(f"stream:address={address}", "kv")
    assert [score.state for score in board.scores] == ["failed", "done"]
    assert "server" in board.scores[0].message


def test_a_line_up_without_any_local_column_loads_no_model() -> None:
    record()
    _, board = raced("recording", "stream", target=ModelSpec("nobody/nothing", "openvino"))
    assert [score.state for score in board.scores] == ["done", "done"]


def test_a_stop_ends_a_lane_that_waits() -> None:
    """A server that never answers must not hold the race: its events are waited for elsewhere."""
    answered = threading.Event()

    def waiting(column: int, request: Request, values: Mapping[str, Any]) -> Lane:
        def events() -> Iterator[Event]:
            answered.wait()
            yield Finished(column, "end of text", [])

        return Lane(column, polled(events()), alone=True)

    slow = replace(STREAM, name="slow", lane=waiting)
    known = load_declared("decode_derby.none", Strategy, (*registry.OURS, slow))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_registered", lambda: known)
        columns = (parse_column("kv"), parse_column("slow"))
        events: list[Event] = []

        def kv_ended() -> bool:
            return any(isinstance(e, Finished) and e.column == 0 for e in events)

        run_to_end(Race(REQUEST, columns, FAKE), LoadedModels(), events.append, kv_ended)
    answered.set()
    assert [e.reason for e in events if isinstance(e, Finished) and e.column == 1] == ["stopped"]
    assert not any(isinstance(e, Failed) for e in events)


def test_settings_of_a_lane_are_its_own_alone() -> None:
    assert set(parse_column("stream").settings()) == {"address"}
    assert str(parse_column("stream:address=a/b")) == "stream:address=a/b"
    with pytest.raises(DerbyError, match="no setting 'cache'"):
        parse_column("stream:cache=session")
