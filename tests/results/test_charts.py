"""The curve of what passes cost, and where the columns lie beside it."""

from dataclasses import replace

import pytest
from boards import SPEC, STEEP, board_of, priced

from backend.events import Started
from backend.results.charts import cost_curve


def test_the_curve_is_what_was_measured_in_numbers_and_in_words() -> None:
    curve = cost_curve(board_of("kv lookup", *priced(0, 1, 1), *priced(1, 5, 4)))
    assert curve is not None
    assert [rows for rows, _, _ in curve["points"]] == list(STEEP.widths)
    pairs = zip(curve["points"], curve["cells"], strict=True)
    for (rows, steps, words), (first, milliseconds, third) in pairs:
        assert steps == pytest.approx(STEEP.relative(rows))
        assert words.endswith(f"{milliseconds} ms, {third} plain steps")
        assert float(milliseconds) == pytest.approx(1e3 * STEEP(rows), abs=0.05)
        assert first == str(rows)
    assert curve["points"][0][2] == "1 row: 1.0 ms, 1.00 plain steps"
    assert "1.0 ms" in curve["note"]


@pytest.mark.parametrize(
    ("tokens", "verdict", "pace"), [(4, "it can pay", "faster"), (3, "it cannot pay", "slower")]
)
def test_a_column_lies_above_the_curve_or_below(tokens: int, verdict: str, pace: str) -> None:
    """Five rows cost three plain steps; plain columns have no mark."""
    curve = cost_curve(board_of("kv lookup", *priced(0, 1, 1), *priced(1, 5, tokens)))
    assert curve is not None
    [mark] = curve["marks"]
    assert (mark["name"], mark["pace"]) == ("Prompt lookup", pace)
    assert (mark["rows"], mark["tokens"], mark["steps"]) == (5, tokens, 3)
    assert mark["sentence"].endswith(verdict)


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
