"""Every figure stands in the one table, says what it means, and is a dash while it is unknown."""

import json
from dataclasses import replace

import pytest
from boards import PAIRS, SINGLE, board_of, started, step, written

from backend.events import Event, Finished, Prefilled
from backend.results.figures import FIGURES, NONE, Figure, duration, figure, figures, glossary
from backend.results.metrics import Score


def test_names_and_titles_tell_figures_apart_and_each_has_its_line_of_help() -> None:
    assert len({entry.name for entry in FIGURES}) == len({entry.title for entry in FIGURES})
    assert len({entry.name for entry in FIGURES}) == len(FIGURES)
    assert all(entry.help.endswith(".") and entry.unit.name for entry in FIGURES)
    assert all("Example: " in entry.help for entry in FIGURES), "one each"
    assert [title for title, _, _ in glossary()] == [entry.title for entry in FIGURES]
    assert json.loads(json.dumps(glossary()))
    assert {"tokens per pass", "mask compute", "mask wait"} <= {f.title for f in FIGURES}
    assert all(set(figures(place)) <= set(FIGURES) for place in ("page", "table", "summary"))


@pytest.mark.parametrize("entry", FIGURES, ids=lambda entry: entry.name)
def test_what_is_not_known_is_a_dash_and_never_zero(entry: Figure) -> None:
    nothing = (entry.text(Score(), Score()), entry.cell(Score(), Score()))
    assert nothing == (NONE, NONE)
    board = board_of("kv speculative", *written(0, SINGLE, 0.1), *written(1, PAIRS, 0.15))
    value = entry.value(board.scores[1], board.scores[0])
    assert value is None or value > 0


def test_figures_of_a_column_worked_out_by_hand() -> None:
    board = board_of("kv speculative", *written(0, SINGLE, 0.1), *written(1, PAIRS, 0.15))
    texts = {f.name: f.text(board.scores[1], board.baseline) for f in FIGURES}
    assert texts["speedup"] == "1.33\u00d7"
    assert texts["ttft"] == "1.00 s"
    assert texts["tpot"] == "75.0 ms"
    assert texts["rate"] == "13.3"
    assert texts["tokens_per_forward"] == "2.00"
    assert (texts["drafted"], texts["accepted"]) == ("3", "100%")
    assert (texts["tokens"], texts["time"]) == ("7", "1.45 s")
    assert texts["mask_compute"] == texts["mask_wait"] == texts["predicted"] == NONE
    assert figure("tpot").cell(board.scores[1], board.baseline) == "75"
    assert figure("tpot").heading == "TPOT, ms"


def test_what_a_mask_takes_and_what_a_step_waits_for_it_are_two_figures() -> None:
    """One name stood for both: the mean compute on the page, the exposed wait in the terminal."""
    seconds = {"total": 0.5, "draft": 0.0, "mask": 0.001, "forward": 0.4, "rest": 0.099}
    events: list[Event] = [started(0)]
    events += [step(0, [i], 0.5, masks=[0.02, 0.04], seconds=seconds) for i in range(3)]
    score = board_of("grammar", *events).scores[0]
    assert figure("mask_compute").value(score, Score()) == pytest.approx(30.0)
    assert figure("mask_wait").value(score, Score()) == pytest.approx(1.0)


def test_agreement_is_of_tokens_behind_the_same_text() -> None:
    """Tokens were once to be compared place by place, and behind the first difference none is of
    the same text: one token more or less would have made all the rest differ.
    """
    kv, same, other = [[1], [2], [3], [4]], [[1, 2], [3, 4]], [[1, 2], [9, 4]]
    board = board_of(
        "kv lookup lookup:k=3",
        *written(0, kv, 0.1),
        *written(1, same, 0.1),
        *written(2, other, 0.1),
    )
    agreement = [figure("agreement").text(score, board.baseline) for score in board.scores]
    assert agreement == [NONE, NONE, "75.0%"], "0, 1 and 2 agree, 9 does not"
    assert [score.agreement_with(board.baseline) for score in board.scores[1:]] == [(5, 5), (3, 4)]
    board.scores[2].tokenizer = "another"
    assert board.scores[2].agreement_with(board.baseline) == (0, 0)
    assert figure("agreement").unit.cell(0.99999) == "99.9%", "never 100 % of what differs"


def test_a_lane_of_text_alone_has_figures_for_what_it_shows() -> None:
    """A remote server: neither ids nor gaps, rows or parts, but tokens as they come."""
    bare = replace(step(0, [], 0.1, rows=0), origins=["sampled"], seconds={"total": 0.1})
    words = [bare] * 5
    events = [Prefilled(0, 5, 5, 0.2), *words, Finished(0, "end of text", [])]
    score = board_of("kv", *events).scores[0]
    known = {f.name for f in FIGURES if f.value(score, score) is not None}
    assert known == {
        *("speedup", "whole", "ttft", "tpot", "rate", "tokens", "time"),
        *("tokens_per_forward", "pass_cost"),  # a token that no draft guessed is a pass
    }
    assert figure("tokens").text(score, score) == "5"
    assert score.tpot == pytest.approx(0.1)


def test_durations_are_in_fitting_units_and_never_powers_of_ten() -> None:
    """A prefill of three seconds stood in the tables as 2.9e+03."""
    values = (0.00005, 0.0123, 0.25, 1.5)
    assert list(map(duration, values)) == ["0.05 ms", "12.3 ms", "250 ms", "1.50 s"]
    below = map(figure("ttft").unit.cell, (0.0123, 31.25, 250.4, 2901.2))
    assert list(below) == ["0.0123", "31.2", "250", "2,901"]
