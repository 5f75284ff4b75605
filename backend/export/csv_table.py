"""The table of a race for spreadsheets: numbers as numbers, texts as nothing but texts."""

import csv
from collections.abc import Iterator
from io import StringIO

from backend.records.record import RaceRecord, board
from backend.results.figures import SHARE, TIMES, Figure, figures, no_interval
from backend.results.metrics import Score
from backend.results.scoreboard import Scoreboard
from backend.results.sentences import outcome

#: How a cell begins that a spreadsheet would compute.
FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def csv_table(record: RaceRecord) -> str:
    """A line a column (RFC 4180): every figure of the result's table, its unit in the heading, the
    ends of its interval behind it; "" where it is not known. "clock": whose time it is.
    """
    made, text = board(record), StringIO()
    writer = csv.writer(text)
    headings = [heading for figure in figures("table") for heading in _headings(figure)]
    writer.writerow(["column", *headings, "text", "message", "clock"])
    for index in range(len(made.columns)):
        writer.writerow(map(_defused, _line(made, index)))
    return text.getvalue()


def _headings(figure: Figure) -> Iterator[str]:
    unit = "" if figure.unit.name in (*figure.title.split(), TIMES) else f", {figure.unit.name}"
    yield f"{figure.title}{unit}"
    if figure.ratio is not no_interval:
        yield from (f"{figure.title}, low", f"{figure.title}, high")


def _line(made: Scoreboard, index: int) -> Iterator[str]:
    score = made.scores[index]
    yield made.columns[index].label
    for figure in figures("table"):
        yield from _cells(figure, score, made.baseline)
    yield outcome(made, index)
    yield score.message
    yield score.clock


def _cells(figure: Figure, score: Score, baseline: Score) -> Iterator[str]:
    """One for each heading of the figure."""
    value = figure.value(score, baseline)
    yield "" if value is None else _number(value * 100 if figure.unit is SHARE else value)
    if figure.ratio is not no_interval:
        ends = figure.ratio(score, baseline).interval
        yield from map(_number, ends) if ends else ("", "")


def _number(value: float) -> str:
    return f"{value:.6g}"


def _defused(cell: str) -> str:
    return f"'{cell}" if cell.startswith(FORMULAS) else cell
