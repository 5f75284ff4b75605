"""Columns that are a library's own decoding, as a race's reader sees them."""

from dataclasses import replace

import pytest
from boards import LONG, board_of, started, step, written

from backend.cli.tables import summary
from backend.events import Event, Served, Step
from backend.results.sentences import brief, headline, lead, reading, reason, verdict
from backend.results.track import photo_finish
from backend.web.view import view

GENAI = {"engine": "openvino_genai"}


def library(column: int, rounds: list[list[int]], seconds: float) -> list[Event]:
    """A library's column: what each round wrote and when, and nothing of rows or parts."""
    events = written(column, rounds, seconds, GENAI)
    return [
        replace(each, rows=0, drafted=0, gaps=[], seconds={"total": each.seconds["total"]})
        if isinstance(each, Step)
        else each
        for each in events
    ]


PAIRS = [[2 * i + 1, 2 * i + 2] for i in range(30)]


def test_a_column_that_runs_alone_is_a_rival_once_it_runs_and_is_told_of() -> None:
    """One that waited hid who led, and the page said that it still read the prompt."""
    board = board_of("kv lookup openvino_genai", started(0), started(1))
    ours = [step(i, [t], cost) for t in range(20) for i, cost in enumerate((0.1, 0.08))]
    for event in ours:
        board.add(event)
    assert lead(board)
    assert reading(board) == ""
    for event in (*written(0, LONG[20:], 0.1)[2:], *written(1, LONG[20:], 0.08)[2:]):
        board.add(event)
    assert photo_finish(board) is None, "it may be quicker"
    assert "run alone" in view(board_of("openvino_genai", started(0)), race=1, goal=9)["status"]
    for event in library(2, PAIRS, 0.05):
        board.add(event)
    finish = photo_finish(board)
    assert finish is not None
    assert finish.column == 2
    assert all("ran alone" not in reason(board, i) for i in range(2))
    assert "ran alone" in brief(board, 2)
    assert "ran alone" in str(summary(board).caption)


def test_tokens_a_pass_are_known_without_rows_where_a_library_has_a_clock_here() -> None:
    board = board_of("kv transformers", *written(0, LONG, 0.1), *library(1, PAIRS, 0.15))
    score = board.scores[1]
    assert (score.passes, score.tokens_per_forward) == (len(PAIRS), 2)
    assert (score.drafted, score.positions) == (0, []), "nobody says how much was guessed"
    assert board.gain(1).known, "both took turns"
    assert board.speedup(1) == pytest.approx(4 / 3, rel=0.02)
    assert reason(board, 1).startswith("2.00 tokens per pass")
    far = [started(1), Served(1, "network", 0.001), *library(1, PAIRS, 0.15)[1:]]
    assert board_of("kv @a", *written(0, LONG, 0.1), *far).scores[1].tokens_per_forward == 0


@pytest.mark.parametrize("keeps_text", [True, False])
@pytest.mark.parametrize("at", [None, 5])
def test_a_library_s_text_may_differ_and_the_first_difference_is_told(
    at: int | None, keeps_text: bool
) -> None:
    """It rounds, and draws, otherwise: neither a bug, nor a text that it promised."""
    rounds = [pair if i != at else [98, 99] for i, pair in enumerate(PAIRS)]
    events = library(1, rounds, 0.15)
    events[0] = replace(started(1, **GENAI), keeps_text=keeps_text)
    board = board_of("kv transformers", *written(0, LONG, 0.1), *events)
    assert board.sameness(1) == ("allowed" if at else "same")
    assert "The text changed" not in headline(board)
    assert not board.keeps_text(1)
    said = verdict(board, 1)
    assert said.startswith("differs from KV reuse at token 12" if at else "identical to KV reuse")
