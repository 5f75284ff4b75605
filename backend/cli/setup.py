"""python -m backend setup, grammar: what is prepared or checked before a race."""

from pathlib import Path
from typing import Annotated

import typer

from backend.cli.console import out, say
from backend.engines.openvino.export import openvino_ir
from backend.grammar.check import check
from backend.grammar.sources import grammar_from_file
from backend.types import ModelSpec


def setup() -> None:
    """Download and prepare everything that the app needs, once."""
    for precision in ("fp32", "int4"):
        openvino_ir(ModelSpec(precision=precision), say)
    say("Everything is ready.")


def grammar(
    file: Annotated[Path, typer.Argument(help="A .lark, .schema.json or .regex file.")],
    text: Annotated[
        str | None,
        typer.Option(help="Show how much of this text fits; exit code 1 unless all of it does."),
    ] = None,
) -> None:
    """Check a grammar, and how much of a text it accepts."""
    sample = text or ""
    fit = check(grammar_from_file(file), sample)
    out.print(fit.sentence(sample), highlight=False, markup=False)
    if text is not None and not fit.covers(sample):
        raise typer.Exit(1)
