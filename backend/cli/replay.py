"""python -m backend replay."""

import json
import os.path
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from backend.cli.console import out, say, visible
from backend.cli.options import AsJson
from backend.cli.tables import show
from backend.errors import DerbyError, check_range
from backend.events import to_json
from backend.records.file import load
from backend.records.link import Held, decode, is_link, link
from backend.records.record import RaceRecord
from backend.records.timeline import paced, timeline
from backend.results.scoreboard import Scoreboard
from backend.web.carry import file_of

#: Times as fast as the columns' own clocks, at most.
FASTEST = 1000.0


class Form(StrEnum):
    """What a record may be printed as: a link, or what the page saves."""

    html = "html"
    json = "json"
    csv = "csv"
    markdown = "markdown"
    trace = "trace"
    svg = "svg"
    png = "png"
    curve_svg = "curve-svg"
    curve_png = "curve-png"
    link = "link"


#: What is said of a link that does not hold all.
HOLDS: dict[Held, str] = {
    "all but details": "the race without what was proposed at each step",
    "rounded": "the race with its times rounded",
    "settings": "the settings alone, for the race is too long",
}


def replay(
    file: Annotated[str, typer.Argument(help="A file of race --record, or a link to a race.")],
    speed: Annotated[
        float,
        typer.Option(help="Times as fast as the columns' own clocks; 0: at once."),
    ] = 0.0,
    form: Annotated[
        Form | None,
        typer.Option(
            "--as",
            help="Print it as a page, the record itself, a table, a trace for Perfetto, a picture "
            "of the result or of the curve of what passes cost, or a link.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    check_range("speed", speed, 0.0, FASTEST)
    record = _read(file)
    if as_json:
        for event in record.events:
            print(json.dumps(to_json(event)))
        return
    if form is Form.link:
        print(_linked(record))
        return
    record = record.published(visible)
    if form is not None:
        _print(file_of(record, form).content)
        return
    show(Scoreboard(record.columns), paced(timeline(record), speed))
    out.print(f"Recorded: {visible(record.place)}.", style="dim", highlight=False, markup=False)


def _print(content: str | bytes) -> None:
    """Raises DerbyError for bytes on a terminal, which shows no pictures."""
    if isinstance(content, str):
        print(content, end="")
    elif _on_a_terminal():
        raise DerbyError("A PNG is no text for a terminal: put `> race.png` behind the command.")
    else:
        sys.stdout.buffer.write(content)


def _on_a_terminal() -> bool:
    return sys.stdout.isatty()


def _linked(record: RaceRecord) -> str:
    """What to put behind a page's address; a line on stderr says what did not fit."""
    made = link(record)
    if made.holds != "all":
        say(f"The link holds {HOLDS[made.holds]}; the file holds all.")
    return made.fragment


def _read(given: str) -> RaceRecord:
    """Raises DerbyError for what is neither a record nor a link."""
    there = os.path.lexists(given)
    return decode(given) if is_link(given) and not there else load(Path(given))
