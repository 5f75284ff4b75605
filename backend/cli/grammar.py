"""python -m backend grammar."""

from pathlib import Path
from typing import Annotated

import typer

from backend.cli.console import as_utf8, out
from backend.grammar.sources import grammar_from_file


def grammar(
    file: Annotated[Path, typer.Argument(help="A .lark, .schema.json, .regex or .gbnf file.")],
    text: Annotated[str, typer.Option(help="Show how much of this text the grammar accepts.")] = "",
) -> None:
    from backend.grammar.sandbox.parent import Sandbox
    from backend.web.editor import SOUND, fit, page_tokenizer

    fits = fit(grammar_from_file(file), page_tokenizer(), as_utf8(text), Sandbox())
    out.print(f"{SOUND} {fits}", highlight=False, markup=False)
