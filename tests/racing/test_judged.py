"""A column whose JSON Schema let its text end says what an independent validator says of it."""

import json
from typing import Any

import pytest
from races import FAKE, board_after, events_of

from backend.events import Event, Finished, Judged, Prepared, Step
from backend.grammar.sources import GrammarSource
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import Column, parse_column
from backend.types import Request

NAMES = {"type": "array", "items": {"enum": ["Ada", "Grace"]}, "minItems": 2, "maxItems": 2}


@pytest.fixture(scope="module")
def engines() -> LoadedModels:
    return LoadedModels()


def column(schema: Any, words: str = "grammar:grammar=own") -> Column:
    return parse_column(words, GrammarSource("json_schema", json.dumps(schema), "judged"))


def run(race: Race, engines: LoadedModels) -> tuple[list[Event], Scoreboard]:
    events = events_of(race, engines)
    return events, board_after(race.columns, events)


def race(*columns: Column, tokens: int = 200) -> Race:
    return Race(Request("Who?", tokens), columns, FAKE)


def test_every_column_that_its_schema_lets_end_is_judged_once(engines: LoadedModels) -> None:
    columns = [column(NAMES, words) for words in ("kv:grammar=own", "lookup:grammar=own,k=3")]
    events, board = run(race(*columns), engines)
    for index, score in enumerate(board.scores):
        own = [event for event in events if getattr(event, "column", -1) == index]
        assert isinstance(own[-1], Finished)
        assert own[-2] == Judged(index, "valid", "")
        assert len(json.loads(score.text)) == 2


def test_what_the_engine_lets_through_is_named(engines: LoadedModels) -> None:
    """llguidance 1.9.1 takes second 60 at any time of day."""
    moment = {"type": "string", "format": "date-time", "pattern": "^2024-01-01T10:00:60Z$"}
    schema = {
        "type": "object",
        "properties": {"a/b": moment},
        "required": ["a/b"],
        "additionalProperties": False,
    }
    events, _ = run(race(column(schema)), engines)
    (judged,) = [event for event in events if isinstance(event, Judged)]
    assert judged.verdict == "invalid"
    assert judged.why == 'at /a/b: "2024-01-01T10:00:60Z" is not a "date-time"'


@pytest.mark.parametrize("words", ["grammar:grammar=json", "kv", "kv:grammar=arithmetic"])
def test_nothing_is_said_of_a_text_without_a_schema(engines: LoadedModels, words: str) -> None:
    events, _ = run(race(parse_column(words)), engines)
    assert not any(isinstance(event, Judged) for event in events)


@pytest.mark.parametrize("words", ["grammar:grammar=own", "lookup:grammar=own,k=3"])
def test_a_text_that_is_complete_at_the_token_limit_has_ended_and_is_judged(
    engines: LoadedModels, words: str
) -> None:
    _, board = run(race(column(NAMES, words)), engines)
    whole = board.scores[0]
    for tokens, reason in ((whole.length, "end of text"), (whole.length - 1, "token limit")):
        events, board = run(race(column(NAMES, words), tokens=tokens), engines)
        assert (board.scores[0].reason, board.scores[0].length) == (reason, tokens)
        judged = [event.verdict for event in events if isinstance(event, Judged)]
        assert judged == (["valid"] if reason == "end of text" else [])


def test_judging_is_on_nobody_s_clock(engines: LoadedModels) -> None:
    events, board = run(race(column(NAMES)), engines)
    steps = sum(event.seconds["total"] for event in events if isinstance(event, Step))
    compiled = sum(event.compiled for event in events if isinstance(event, Prepared))
    assert board.scores[0].seconds == pytest.approx(steps + compiled)
