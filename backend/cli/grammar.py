"""python -m backend grammar."""

from pathlib import Path
from typing import Annotated

import typer

from backend.cli.console import as_utf8, out
from backend.grammar.sources import grammar_from_file


def grammar(
    file: Annotated[Path, typer.Argument(help="A .lark, .schema.json, .regex or .gbnf file.")],
    text: Annotated[
        str | None,
        typer.Option(help="Show how much of this text fits; exit code 1 unless all of it does."),
    ] = None,
) -> None:
    from backend.grammar.check import check

    sample = as_utf8(text or "")
    fit = check(grammar_from_file(file), sample)
    out.print(fit.sentence(sample), highlight=False, markup=False)
    whole = fit.accepted == len(sample) and fit.accepting and not fit.invalid
    if text is not None and not whole:
        raise typer.Exit(1)
