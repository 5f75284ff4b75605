"""Tables: of a race Markdown for documents and chats, with its sentences; of a benchmark CSV for
spreadsheets, with numbers as numbers and texts as plain text.
"""

import csv
import re
from collections.abc import Callable, Iterable, Mapping
from io import StringIO

from backend.export.picture import picture_of
from backend.records.file import as_bytes
from backend.records.record import RaceRecord
from backend.results.figures import DASH, FIGURES
from backend.results.result import result_of
from backend.results.sentences import doubt, headline, mark, reasons

#: Where a spreadsheet would begin to compute: at a cell's beginning, and behind what it may have
#: been told that parts cells.
_FORMULA = re.compile(r'(?<![^;\t\r\n])(?="*[=+\-@\t\r\n])')

#: What Markdown, or HTML within it, would take for more than a character.
_MARKS = re.compile(r"([\\`*_\[\]<>|&#~!$])")

#: Within what GitHub would link, escaped or not: names of people, issues and addresses. A space of
#: no width there is seen by nobody else.
_LINKS = re.compile(r"(?<=[@#])(?=\w)|(?<=:)(?=//)|(?<=www)(?=\.)", re.IGNORECASE)


def csv_of(rows: Iterable[Iterable[object]]) -> str:
    """The rows as CSV (RFC 4180), where None is empty. No spreadsheet takes a text for a formula:
    where one would begin there is an apostrophe in front.
    """
    text = StringIO()
    csv.writer(text).writerows(
        [_FORMULA.sub("'", cell) if isinstance(cell, str) else cell for cell in row] for row in rows
    )
    return text.getvalue()


def markdown(record: RaceRecord) -> str:
    """The headline, the table of figures, why each column is as fast as it is, and where the race
    ran. Whatever a record says is plain text here: no markup, no new cell, no new line.
    """
    scoreboard = record.board
    result = result_of(scoreboard)
    headings = ["Column", *(figure.title for figure in FIGURES), "text"]
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


#: A race as files, by their names: the whole race, its table and its picture.
FORMS: Mapping[str, Callable[[RaceRecord], str]] = {
    "race.json": lambda record: as_bytes(record).decode(),
    "race.md": markdown,
    "race.svg": picture_of,
}


def _literal(text: str) -> str:
    parted = _LINKS.sub("\N{ZERO WIDTH SPACE}", " ".join(text.split()))
    return _MARKS.sub(r"\\\1", parted)
