"""Tables of a race: CSV for spreadsheets, with numbers as numbers and texts as plain text, and
Markdown for documents and chats, with the race's sentences.
"""

import csv
import re
from collections.abc import Iterable, Iterator
from io import StringIO

from backend.export.picture import picture_of
from backend.records.file import as_bytes
from backend.records.record import RaceRecord, board
from backend.results.figures import DASH, FIGURES, TIMES, Figure
from backend.results.result import Row, result_of
from backend.results.scoreboard import Scoreboard
from backend.results.sentences import doubt, headline, mark, reasons

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
    """One line for each column: every figure with its unit in the heading, the ends of the
    speed-up's interval, and how its text compares; "" for unknown values.
    """
    scoreboard = board(record)
    headings = ["column", "option", *map(_heading, FIGURES), "speed-up, low", "speed-up, high"]
    lines = (_line(scoreboard, row) for row in result_of(scoreboard).rows)
    return csv_of([[*headings, "verdict", "text", "message"], *lines])


def _heading(figure: Figure) -> str:
    known = figure.unit.name in (*figure.title.split(), TIMES)
    return figure.title if known else f"{figure.title}, {figure.unit.name}"


def _line(scoreboard: Scoreboard, row: Row) -> Iterator[object]:
    yield from (row.name, str(scoreboard.columns[row.column]))
    for figure in FIGURES:
        value = figure.value(row)
        percent = 100 if figure.unit.name == "%" else 1
        yield None if value is None else f"{value * percent:.6g}"
    yield from (f"{end:.6g}" for end in row.speedup.interval) if row.speedup.interval else ("", "")
    yield from (row.verdict, mark(scoreboard, row), row.message)


def markdown(record: RaceRecord) -> str:
    """The headline, the table of figures, why each column is as fast as it is, and where the race
    ran. Whatever a record says is plain text here: no markup, no new cell, no new line.
    """
    scoreboard = board(record)
    result = result_of(scoreboard)
    headings = ["Column", *(figure.heading for figure in FIGURES), "text"]
    lines = [
        [row.name, *(figure.cell(row) for figure in FIGURES), mark(scoreboard, row) or DASH]
        for row in result.rows
    ]
    rules = [":--", *("--:" for _ in FIGURES), ":--"]
    table = [map(_literal, headings), rules, *(map(_literal, line) for line in lines)]
    parts = [
        _literal(headline(scoreboard, result)),
        _literal(doubt(scoreboard, result)),
        "\n".join(f"| {' | '.join(line)} |" for line in table),
        "\n".join(f"- {_literal(each)}" for each in reasons(scoreboard, result)),
    ]
    return "\n\n".join([*filter(None, parts), f"{_literal(record.place)}."]) + "\n"


def files_of(record: RaceRecord) -> dict[str, str]:
    """A race as files, by their names: the whole race, its tables and its picture."""
    return {
        "race.json": as_bytes(record).decode(),
        "race.md": markdown(record),
        "race.csv": csv_table(record),
        "race.svg": picture_of(record),
    }


def _literal(text: str) -> str:
    return _MARKS.sub(r"\\\1", " ".join(text.split()))
