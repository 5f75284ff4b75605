"""Options that several commands share. What can be chosen is read from the registries."""

from typing import Annotated

import typer

from backend.engines.registry import device_help, engine_help, precision_help
from backend.strategies.column import OwnModel
from backend.strategies.registry import strategies
from backend.types import ModelSpec

Columns = Annotated[
    list[str],
    typer.Option(
        "--column",
        "-c",
        help="A column, name[@engine/precision/device][:setting=value,...]; repeat for more. "
        "Names: " + ", ".join(strategies()),
    ),
]
Model = Annotated[
    str, typer.Option(help="built-in, a folder or GGUF file (/..., ./..., ~/...), or a Hub id.")
]
EngineName = Annotated[str, typer.Option(help=engine_help())]
Precision = Annotated[str, typer.Option(help=precision_help() + " Default: each one's first.")]
Device = Annotated[str, typer.Option(help=device_help())]
MaxNewTokens = Annotated[int, typer.Option(help="Tokens to generate, at most.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
Seed = Annotated[int, typer.Option(help="Noise is keyed by seed and position.")]
Raw = Annotated[bool, typer.Option("--raw", help="No chat template.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def target_model(model: str, engine: str, precision: str, device: str) -> ModelSpec:
    """The model that these options name. Raises DerbyError for an unknown engine."""
    return OwnModel(model, engine, precision, device).over(ModelSpec())
