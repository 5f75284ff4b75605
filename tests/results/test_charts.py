"""The curve of what passes cost, and where the columns lie beside it."""

from dataclasses import replace

import pytest
from boards import LONG, LONG_PAIRS, SPEC, STEEP, board_of, priced, started, step, written

from backend.events import CostsKnown, Finished, Started
from backend.results.charts import cost_curve
from backend.results.sentences import pass_cost, reason


def test_the_curve_is_what_was_measured_in_numbers_and_in_words() -> None:
    curve = cost_curve(board_of("kv lookup", *priced(0, 1, 1), *priced(1, 5, 4)))
    assert curve is not None
    assert [rows for rows, _, _ in curve["points"]] == list(STEEP.widths)
    pairs = zip(curve["points"], curve["cells"], strict=True)
    for (rows, steps, words), (first, second) in pairs:
        assert steps == pytest.approx(STEEP.relative(rows))
        assert words.endswith(f": {second}\u00d7 as long")
        assert first == str(rows)
    assert curve["points"][0][2] == "1 row: 1.00\u00d7 as long"


@pytest.mark.parametrize(("tokens", "verdict"), [(4, "faster"), (3, "slower")])
def test_without_a_baseline_a_mark_lies_on_the_curve_and_says_so(tokens: int, verdict: str) -> None:
    """Five rows take three times as long as one; plain columns have no mark."""
    curve = cost_curve(board_of("lookup grammar", *priced(0, 5, tokens), *priced(1, 1, 1)))
    assert curve is not None
    [mark] = curve["marks"]
    assert (mark["name"], mark["pace"]) == ("Prompt lookup", "")
    assert (mark["rows"], mark["tokens"], mark["steps"]) == (5, tokens, 3)
    assert mark["sentence"] == (
        f"a pass wrote {tokens}.00 tokens over 5.0 rows and should take 3.00\u00d7 as long: "
        f"it should be {verdict}"
    )


def test_what_should_be_faster_is_so_with_its_draft() -> None:
    """Four tokens in three plain steps "should be faster", though drafting took six more."""
    costs = [event for event in priced(0, 5, 4) if isinstance(event, CostsKnown)]
    drafted = [replace(each, draft=1.5e-3) for each in costs]
    steps = [step(0, [0] * 4, 0.004, rows=5, drafted=4, calls=4) for _ in range(9)]
    events = [started(0), *drafted, step(0, [0], 0.004), *steps, Finished(0, "token limit", [])]
    curve = cost_curve(board_of("lookup grammar", *events))
    assert curve is not None
    [mark] = curve["marks"]
    assert mark["steps"] == pytest.approx(9)
    assert mark["sentence"].endswith("should take 9.00\u00d7 as long: it should be slower")


@pytest.mark.parametrize(
    ("seconds", "pace"),
    [(0.15, "faster"), (0.25, "slower")],
)
def test_a_mark_costs_what_the_card_says(seconds: float, pace: str) -> None:
    """A card said that a pass took 1.56 times as long and the curve 1.12: one was measured in the
    race, the other read off the curve.
    """
    costs = [event for event in priced(1, 5, 4) if isinstance(event, CostsKnown)]
    wide = [step(1, block, seconds, 1, rows=5, drafted=4) for block in LONG_PAIRS]
    guessing = [started(1), *costs, step(1, [0], 1.0), *wide, Finished(1, "token limit", [])]
    board = board_of("kv lookup", *written(0, LONG, 0.1), *guessing)
    curve = cost_curve(board)
    assert curve is not None
    [mark] = curve["marks"]
    assert (mark["pace"], board.pace(1)) == (pace, pace)
    assert mark["steps"] == pytest.approx(pass_cost(board, 1), abs=0.001)
    assert mark["steps"] != pytest.approx(STEEP.relative(5), abs=0.1)
    assert mark["sentence"].endswith(f"took {pass_cost(board, 1):.2f}\u00d7 as long: {pace}")
    assert f" per pass \u00f7 {pass_cost(board, 1):.2f}\u00d7 the time = " in reason(board, 1)


def test_a_mark_between_two_rows_lies_on_the_curve_all_the_same() -> None:
    events = [*priced(0, 13, 2, steps=1)[:-1], *priced(0, 16, 2, steps=1)[3:]]
    curve = cost_curve(board_of("lookup", *events))
    assert curve is not None
    [mark] = curve["marks"]
    assert mark["rows"] == 14.5
    assert mark["steps"] == pytest.approx((1 + 14.5) / 2)


def test_wide_passes_without_guesses_are_no_marks() -> None:
    """A column without a cache computes many rows, and guesses nothing."""
    curve = cost_curve(board_of("stateless kv", *priced(0, 40, 1), *priced(1, 1, 1)))
    assert curve is not None
    assert [mark["name"] for mark in curve["marks"]] == []


def test_columns_on_another_model_are_no_marks_of_this_ones_curve() -> None:
    """Columns at int4 were drawn on the fp32 curve, as if their passes cost as much."""
    other = [
        replace(event, spec=SPEC | {"precision": "int4"}) if isinstance(event, Started) else event
        for event in priced(1, 4, 3)
    ]
    curve = cost_curve(
        board_of("kv lookup@int4 lookup", *priced(0, 1, 1), *other, *priced(2, 4, 3))
    )
    assert curve is not None
    assert [mark["name"] for mark in curve["marks"]] == ["Prompt lookup"]
