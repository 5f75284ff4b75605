"""Options that several commands share. What can be chosen is read from the registries."""

from pathlib import Path
from typing import Annotated

import typer

from backend import types
from backend.bench.prompts import PROMPTS, Prompt, read_prompts, sample
from backend.cli.console import say
from backend.engines.registry import engines, of_each
from backend.errors import either
from backend.racing.models import usual_spec
from backend.strategies.column import OwnModel
from backend.strategies.registry import strategies
from backend.types import ModelSpec

Columns = Annotated[
    list[str],
    typer.Option(
        "--column",
        "-c",
        help="A column: name[@engine/precision/device][:setting=value,...]. Repeatable. "
        "Default: those that the model runs. Names: " + ", ".join(strategies()),
    ),
]
MaxNewTokens = Annotated[int, typer.Option(help="The most tokens to generate.")]
Raw = Annotated[bool, typer.Option("--raw", help="Do not use the chat template.")]
FixedLength = Annotated[
    bool, typer.Option("--fixed-length", "--ignore-eos", help="Write --max-new-tokens tokens.")
]
Thinking = Annotated[
    types.Thinking,
    typer.Option(help="on or off: whether a reasoning model thinks first; default: as usual."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON.")]
Model = Annotated[
    str, typer.Option(help="built-in, a folder or GGUF file (/..., ./..., ~/...), or a Hub id.")
]
Wait = Annotated[int, typer.Option(help="The most seconds to wait for a quiet machine.", min=0)]
Limit = Annotated[int, typer.Option(help="How many prompts, spread over the file; 0: all.", min=0)]
Engine = Annotated[str, typer.Option(help=f"{either(engines())}.")]
Precision = Annotated[
    str,
    typer.Option(
        help=of_each(lambda engine: ", ".join(engine.precisions))
        + " Default: the engine's first; the second for own models of more than 1 GB."
    ),
]
Device = Annotated[str, typer.Option(help=of_each(lambda engine: engine.device_help))]
Temperature = Annotated[float, typer.Option(help="0: always the most likely token.")]
TopK = Annotated[int, typer.Option(help="0: off.")]
TopP = Annotated[float, typer.Option(help="1: off.")]
MinP = Annotated[float, typer.Option(help="0: off.")]
RepetitionPenalty = Annotated[float, typer.Option(help="1: off; more repeats less.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same text.")]
PromptFile = Annotated[
    Path | None,
    typer.Option(
        help="A prompt a line, or JSON with prompt, turns or messages, such as Spec-Bench's "
        "questions. Default: six built-in prompts."
    ),
]


def target_of(model: str, engine: str, precision: str, device: str) -> ModelSpec:
    """The model that columns run on; with no precision, see `usual_spec`. Raises DerbyError for an
    unknown engine.
    """
    spec = OwnModel(model, engine, precision, device).over(ModelSpec())
    return spec if precision else usual_spec(spec, say)


def prompts_of(file: Path | None, limit: int) -> tuple[Prompt, ...]:
    """Prompts to measure with. Raises DerbyError for a file that holds none."""
    return sample(read_prompts(file) if file else PROMPTS, limit)
