"""Columns that are a library's own decoding, as a race's reader sees them."""

from dataclasses import replace

import pytest
from boards import LONG, board_of, started, written

from backend.events import Event, Served, Step
from backend.results.result import result_of
from backend.results.sentences import verdict, why

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


def test_a_column_that_runs_alone_sets_the_finish_once_it_has_run() -> None:
    """It waits for the others, and may have been quicker."""
    both = [*written(0, LONG, 0.1), *written(1, LONG, 0.08)]
    waiting = result_of(board_of("kv lookup transformers", *both))
    assert waiting.moment == pytest.approx(4.8)
    board = board_of("kv lookup openvino_genai", *both, *library(2, PAIRS, 0.05))
    result = result_of(board)
    assert "ran alone" in why(board, result.rows[2])
    assert result.rows[2].verdict == "faster"
    assert result.moment == pytest.approx(4.8), "other weights finish no race"


def test_tokens_a_pass_are_known_without_rows_where_a_library_has_a_clock_here() -> None:
    board = board_of("kv transformers", *written(0, LONG, 0.1), *library(1, PAIRS, 0.15))
    score = board.scores[1]
    assert (score.passes, score.tokens_per_forward) == (len(PAIRS), 2)
    assert (score.drafted, score.positions) == (0, []), "nobody says how much was guessed"
    row = result_of(board).rows[1]
    assert row.speedup.known
    assert row.speedup.value == pytest.approx(4 / 3, rel=0.02)
    assert why(board, row).startswith("2.00 tokens per pass")
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
    result = result_of(board)
    assert result.rows[1].text == ("different" if at else "same")
    assert result.texts != "changed"
    said = verdict(board, result.rows[1])
    assert said.startswith("differs from KV reuse at token 12" if at else "identical to KV reuse")
