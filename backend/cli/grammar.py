"""python -m backend grammar."""

from pathlib import Path
from typing import Annotated

import typer

from backend.cli.console import as_utf8, out
from backend.grammar.sources import grammar_from_file


def grammar(
    file: Annotated[Path, typer.Argument(help="A .lark, .schema.json or .regex file.")],
    text: Annotated[str, typer.Option(help="Show how much of this text the grammar accepts.")] = "",
) -> None:
    from backend.grammar.check import DEADLINE, verdict

    said = verdict(grammar_from_file(file), as_utf8(text), DEADLINE)
    out.print(said, highlight=False, markup=False)
