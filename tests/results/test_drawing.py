"""The board's drawing holds the whole race, grows only, and says what the result says."""

import json
from pathlib import Path

import pytest
from scoreboards import LONG, LONG_PAIRS, amount, board_of, drawn_steps, started, step, written

from backend.events import Event, Failed, Finished, Proposed
from backend.records.file import from_bytes
from backend.records.record import board
from backend.results.drawing import Drawer, drawing
from backend.results.result import result_of
from backend.results.scoreboard import Scoreboard
from backend.types import Request

ASSETS = Path(__file__).resolve().parents[2] / "assets"

REQUEST = Request("What?")


def test_what_is_drawn_at_the_end_is_the_result() -> None:
    """The race that a new page plays: the bars at its photo finish are the numbers beside them."""
    record = from_bytes((ASSETS / "opening.json").read_bytes())
    raced = board(record)
    drawn, result = drawing(raced, record.request), result_of(raced)
    assert drawn["finished"]
    base = next(i for i, row in enumerate(result.rows) if row.baseline)
    for index, row in enumerate(result.rows):
        column, moment = drawn["columns"][index], min(row.moment, result.moment or 0)
        steps = drawn_steps(drawn, index)
        assert "".join(text for *_, spans, _ in steps for _, text in spans) == row.score.text
        assert amount(steps, moment) / amount(drawn_steps(drawn, base), moment) == pytest.approx(
            column["speedup"], rel=0.001
        )
    assert json.loads(json.dumps(drawn)) == drawn


def test_steps_only_grow_and_come_to_the_whole() -> None:
    events = [*written(0, LONG, 0.1), *written(1, LONG_PAIRS, 0.1)]
    growing = Scoreboard(board_of("kv lookup").columns)
    drawer, before = Drawer(growing, REQUEST), ["", ""]
    for event in events:
        growing.add(event)
        steps = [column["steps"] for column in drawer.draw()["columns"]]
        assert all(new.startswith(old) for new, old in zip(steps, before, strict=True))
        before = steps
    assert drawer.draw() == drawing(growing, REQUEST)


#: A tree of six, of which the grammar forced the first and ruled out the last; the path is a, d.
#:
#:     a - b - c
#:       - d - e - ...
#:     f
TREE = Proposed(
    column=0,
    tokens=["a", "b", "c", "d", "e", "f", "z"],
    parents=[-1, 0, 1, 0, 3, -1],
    by=[["grammar", 1], ["prompt lookup", 2], ["draft", 4]],
    path=[0, 3],
    chosen=" x",
    cut=1,
    allowed=[1, 4, 5, 6, 2000, 8, 9],
    top=[[["a", 1.0]], [["d", 0.5], ["b", 0.25]], [["e", 0.75], [" x", 0.0001]]],
)


def test_a_step_says_what_became_of_each_guess() -> None:
    seconds = {"total": 0.1, "draft": 0.02, "mask": 0.003, "forward": 0.07, "rest": 0.007}
    wide = step(0, [1, 2, 3], 0.1, 2, rows=7, seconds=seconds)
    events: list[Event] = [started(0), step(0, [0], 1.0), wide]
    board = board_of("lookup", *events, TREE, Finished(0, "token limit", []))
    detail = drawn_steps(drawing(board, REQUEST), 0)[-1][3]
    assert (detail["pass"], detail["rows"]) == (2, 7)
    assert (detail["ms"], detail["draft"], detail["mask"]) == (100, 20, 3)
    assert detail["guesses"] == [
        ["a", "grammar", "accepted", 1],
        ["b", "prompt lookup", "rejected", 2],
        ["c", "prompt lookup", "not reached", 3],
        ["d", "draft", "accepted", 2],
        ["e", "draft", "rejected", 3],
        ["f", "draft", "rejected", 1],
        ["z", "draft", "cut", 0],
    ]
    assert (detail["tokens"], detail["chosen"]) == (["a", "d", " x"], " x")
    assert (detail["allowed"], detail["top"][1]) == (1, [["d", 0.5], ["b", 0.25]])


def test_what_was_proposed_for_the_last_step_may_come_late() -> None:
    events: list[Event] = [started(0), step(0, [0], 1.0), step(0, [1, 2, 3], 0.1, 2, rows=7)]
    growing = board_of("lookup", *events)
    drawer = Drawer(growing, REQUEST)
    assert len(drawn_steps(drawer.draw(), 0)) == 1, "the last one is held back"
    growing.add(TREE)
    growing.add(step(0, [4], 0.1))
    assert drawn_steps(drawer.draw(), 0)[1][3]["guesses"]


def test_a_race_that_was_refused_says_so_once() -> None:
    """Four cards had the same error."""
    drawn = drawing(board_of("kv lookup", Failed(0, "Too long."), Failed(1, "Too long.")), REQUEST)
    assert [drawn["status"], *(each["message"] for each in drawn["columns"])] == [
        "Too long.",
        "",
        "",
    ]
