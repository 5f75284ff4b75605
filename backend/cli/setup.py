"""python -m backend setup, export-draft, grammar: what is prepared or checked beside a race."""

from pathlib import Path
from typing import Annotated

import typer

from backend.cli import options
from backend.cli.console import out, say
from backend.engines.openvino.export import openvino_ir
from backend.errors import DerbyError
from backend.export.draft import written_draft
from backend.grammar.check import check
from backend.grammar.sources import grammar_from_file
from backend.libraries.draft import checkpoint_of
from backend.libraries.library import TRAINED
from backend.models.files import BUILT_IN, gguf_file
from backend.types import ModelSpec


def setup() -> None:
    """Download and prepare everything that the app needs, once."""
    for precision in ("fp32", "int4"):
        openvino_ir(ModelSpec(precision=precision), say)
    say("Everything is ready.")


def export_draft(
    folder: Annotated[Path, typer.Argument(help="Where to write it, a folder a library.")],
    model: options.Model = BUILT_IN,
    draft: Annotated[
        str, typer.Option(help="trained, or the folder or Hub id of the model's EAGLE-3 draft.")
    ] = TRAINED,
    gguf: Annotated[
        str, typer.Option(help="The model's GGUF file, without which llama.cpp gets no draft.")
    ] = "",
) -> None:
    """Write a trained draft in the form of each library: openvino-genai, llama.cpp, vLLM,
    transformers.
    """
    target = ModelSpec(model)
    checkpoint = checkpoint_of(draft, target)
    if checkpoint is None:
        raise DerbyError(f"{draft!r:.100} is no EAGLE-3 draft: name the folder of one.")
    name = gguf or (model if model == BUILT_IN else "")
    file = gguf_file(name, say) if name else None
    for library, place, use in written_draft(checkpoint, target, file, folder):
        out.print(f"{library}: {place}\n    {use}", soft_wrap=True)


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
    out.print(fit.sentence(sample))
    if text is not None and not fit.covers(sample):
        raise typer.Exit(1)
