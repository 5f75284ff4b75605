"""Tables of a race: CSV for spreadsheets, with numbers as numbers and texts as plain text, and
Markdown for documents and chats, with the race's sentences.
"""

import csv
import re
from collections.abc import Iterable, Iterator
from io import StringIO

from backend.records.record import RaceRecord, board
from backend.results.figures import DASH, TIMES, Figure, figures, no_interval
from backend.results.scoreboard import Scoreboard
from backend.results.sentences import headline, ledger, outcome, reason

#: How a cell begins that a spreadsheet would compute.
FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")

_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?", re.ASCII)

#: What Markdown, or HTML within it, would take for more than a character.
_MARKS = re.compile(r"([\\`*_\[\]<>|&#~!$])")


def csv_of(rows: Iterable[Iterable[object]]) -> str:
    """The rows as CSV (RFC 4180), where None is empty. No spreadsheet takes a text for a formula:
    one that begins like a formula has an apostrophe in front.
    """
    text = StringIO()
    csv.writer(text).writerows(map(_harmless, row) for row in rows)
    return text.getvalue()


def _harmless(cell: object) -> object:
    formula = isinstance(cell, str) and cell.startswith(FORMULAS) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if formula else cell


def csv_table(record: RaceRecord) -> str:
    """One line for each column: every figure of the result's table with its unit in the heading,
    followed by the ends of its interval; "" for unknown values. "clock" says whose clock measured
    the times.
    """
    made = board(record)
    headings = [heading for figure in figures("table") for heading in _headings(figure)]
    lines = (_line(made, index) for index in range(len(made.columns)))
    return csv_of([["column", *headings, "text", "message", "clock"], *lines])


def _headings(figure: Figure) -> Iterator[str]:
    unit = "" if figure.unit.name in (*figure.title.split(), TIMES) else f", {figure.unit.name}"
    yield f"{figure.title}{unit}"
    if figure.ratio is not no_interval:
        yield from (f"{figure.title}, low", f"{figure.title}, high")


def _line(made: Scoreboard, index: int) -> Iterator[str]:
    """A cell for each heading."""
    score, number = made.scores[index], "{:.6g}".format
    yield made.columns[index].label
    for figure in figures("table"):
        value = figure.value(score, made.baseline)
        yield "" if value is None else number(value * 100 if figure.unit.name == "%" else value)
        if figure.ratio is not no_interval:
            ends = figure.ratio(score, made.baseline).interval
            yield from map(number, ends) if ends else ("", "")
    yield outcome(made, index)
    yield score.message
    yield score.clock


def markdown(record: RaceRecord) -> str:
    """The headline, the result's table, the reason for each column's speed, and where the race ran.
    Whatever a record says is plain text here: no markup, no new cell, no new line.
    """
    made = board(record)
    said = [(made.name(i), s.message or reason(made, i)) for i, s in enumerate(made.scores)]
    reasons = "\n".join(f"- {_literal(name)}: {_literal(why)}" for name, why in said if why)
    parts = [_literal(headline(made)), _table(made), reasons, _literal(ledger(made))]
    return "\n\n".join([*filter(None, parts), f"{_literal(record.place)}."]) + "\n"


def _table(made: Scoreboard) -> str:
    entries = figures("table")
    headings = ["Column", *(figure.heading for figure in entries), "text"]
    rules = [":--", *("--:" for _ in entries), ":--"]
    lines = [
        [
            made.name(index),
            *(figure.cell(score, made.baseline) for figure in entries),
            outcome(made, index) or DASH,
        ]
        for index, score in enumerate(made.scores)
    ]
    written = [rules if row is rules else map(_literal, row) for row in (headings, rules, *lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in written)


def _literal(said: str) -> str:
    return _MARKS.sub(r"\\\1", " ".join(said.split()))
