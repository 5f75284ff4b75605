"""python -m backend replay."""

import json
import os.path
from pathlib import Path
from typing import Annotated

import typer

from backend.cli.console import out, say, visible
from backend.cli.options import AsJson
from backend.cli.tables import conclude, show
from backend.errors import check_range
from backend.events import to_json
from backend.records.file import load
from backend.records.link import Held, decode, is_link, link
from backend.records.record import RaceRecord
from backend.records.timeline import paced, timeline
from backend.results.scoreboard import Scoreboard
from backend.web.export import FILES, file_of

#: Times as fast as the columns' own clocks, at most.
FASTEST = 1000.0


#: What a record may be printed as: what the page saves, or a link.
FORMS = (*FILES, "link")

#: What is said of a link that does not hold all.
HOLDS: dict[Held, str] = {
    "all but details": "the race without the guesses of each step",
    "settings": "only the settings, because the race is too long",
}


def replay(
    file: Annotated[str, typer.Argument(help="A file from race --record, or a link to a race.")],
    speed: Annotated[
        float,
        typer.Option(help="Speed compared with the columns' own clocks; 0: at once."),
    ] = 0.0,
    form: Annotated[
        str,
        typer.Option(
            "--as",
            help="Print it as a page, the record itself, a table, a trace for Perfetto, a picture "
            "of the result or of the times of passes, or a link: "
            f"{', '.join(FORMS)}.",
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    check_range("speed", speed, 0.0, FASTEST)
    record = _read(file)
    if as_json:
        for event in record.events:
            print(json.dumps(to_json(event)))
        return
    if form == "link":
        print(_linked(record))
        return
    record = record.published(visible)
    if form:
        print(file_of(record, form).content, end="")
        return
    board = Scoreboard(record.columns)
    show(board, paced(timeline(record), speed))
    conclude(board)
    out.print(f"Recorded: {visible(record.place)}.", style="dim", highlight=False, markup=False)


def _linked(record: RaceRecord) -> str:
    """What to add to a page's address. A line on stderr says what did not fit into the link."""
    made = link(record)
    if made.holds != "all":
        say(f"The link holds {HOLDS[made.holds]}; the file holds everything.")
    return made.fragment


def _read(given: str) -> RaceRecord:
    """Raises DerbyError for what is neither a record nor a link."""
    there = os.path.lexists(given)
    return decode(given) if is_link(given) and not there else load(Path(given))
