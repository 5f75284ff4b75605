"""python -m backend replay."""

import json
from pathlib import Path
from typing import Annotated

import typer

from backend.cli.console import out, visible
from backend.cli.options import AsJson
from backend.cli.tables import conclude
from backend.errors import DerbyError
from backend.events import to_json
from backend.export.tables import files_of
from backend.records.file import load
from backend.records.record import board

FORMS = {"json": "race.json", "csv": "race.csv", "markdown": "race.md", "svg": "race.svg"}


def replay(
    file: Annotated[Path, typer.Argument(help="A file from race --record, or saved by the page.")],
    form: Annotated[
        str,
        typer.Option(
            "--as",
            help=f"Print it as the record itself, a table or a picture: {', '.join(FORMS)}.",
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    record = load(file)
    if as_json:
        for event in record.events:
            print(json.dumps(to_json(event)))
        return
    if form:
        if form not in FORMS:
            raise DerbyError(f"There is no form {form!r:.40}; choose from {', '.join(FORMS)}.")
        text = files_of(record)[FORMS[form]]
        print(text if form in ("json", "svg") else visible(text.replace("\r\n", "\n")), end="")
        return
    conclude(board(record))
    out.print(f"Recorded: {visible(record.place)}.", style="dim", highlight=False, markup=False)
