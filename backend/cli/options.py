"""Options that several commands share. What can be chosen is read from the registries."""

from typing import Annotated

import typer

from backend.engines.registry import device_help, engine_help, precision_help
from backend.strategies.registry import strategies

Columns = Annotated[
    list[str],
    typer.Option(
        "--column",
        "-c",
        help="A column, name[@engine/precision/device][:setting=value,...]; repeat for more. "
        "Names: " + ", ".join(strategies()),
    ),
]
Model = Annotated[str, typer.Option(help="built-in, a folder (/..., ./..., ~/...), or a Hub id.")]
EngineName = Annotated[str, typer.Option(help=engine_help())]
Precision = Annotated[str, typer.Option(help=precision_help())]
Device = Annotated[str, typer.Option(help=device_help())]
MaxNewTokens = Annotated[int, typer.Option(help="Tokens to generate, at most.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
Seed = Annotated[int, typer.Option(help="Noise is keyed by seed and position.")]
Raw = Annotated[bool, typer.Option("--raw", help="No chat template.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
