"""The result of a race for documents and chats that read Markdown."""

import re

from backend.records.record import RaceRecord, board
from backend.results.figures import DASH, figures
from backend.results.scoreboard import Scoreboard
from backend.results.sentences import headline, ledger, outcome, reason

#: What Markdown, or HTML within it, would take for more than a character.
_MARKS = re.compile(r"([\\`*_\[\]<>|&#~!$])")


def markdown(record: RaceRecord) -> str:
    """The headline, the result's table, why each column is as fast as it is, and where that was.
    Whatever a record says is text here: no markup, no new cell, no new line.
    """
    made = board(record)
    parts = [_text(headline(made)), _table(made), _reasons(made), _text(ledger(made))]
    return "\n\n".join([*filter(None, parts), f"{_text(record.place)}."]) + "\n"


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
    written = [rules if row is rules else map(_text, row) for row in (headings, rules, *lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in written)


def _reasons(made: Scoreboard) -> str:
    said = [(made.name(i), s.message or reason(made, i)) for i, s in enumerate(made.scores)]
    return "\n".join(f"- {_text(name)}: {_text(why)}" for name, why in said if why)


def _text(said: str) -> str:
    return _MARKS.sub(r"\\\1", " ".join(said.split()))
