"""Options that several commands share. What can be chosen is read from the registries.

A command takes options that belong together as one dataclass; `unbundled` shows typer each of them.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from backend import types
from backend.bench.prompts import PROMPTS, Prompt, read_prompts, sample
from backend.cli.console import say
from backend.engines.registry import device_help, engine_help, precision_help
from backend.racing.models import usual_spec
from backend.strategies.column import OwnModel
from backend.strategies.registry import strategies
from backend.types import ModelSpec, Sampling

Columns = Annotated[
    list[str],
    typer.Option(
        "--column",
        "-c",
        help="A column: name[@engine/precision/device][:setting=value,...]. Repeatable. "
        "Names: " + ", ".join(strategies()),
    ),
]
Device = Annotated[str, typer.Option(help=device_help())]
MaxNewTokens = Annotated[int, typer.Option(help="The most tokens to generate.")]
Temperature = Annotated[float, typer.Option(help="0: always the most likely token.")]
Raw = Annotated[bool, typer.Option("--raw", help="Do not use the chat template.")]
Thinking = Annotated[
    types.Thinking,
    typer.Option(help="on or off: whether a reasoning model thinks first; default: as usual."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON.")]
Model = Annotated[
    str, typer.Option(help="built-in, a folder or GGUF file (/..., ./..., ~/...), or a Hub id.")
]
Wait = Annotated[
    int, typer.Option(help="The most seconds to wait until the machine is quiet.", min=0)
]
Limit = Annotated[
    int, typer.Option(help="How many prompts to use, spread over the file; 0: all.", min=0)
]


@dataclass(frozen=True, slots=True)
class Target:
    """The model that columns run on."""

    model: Model = "built-in"
    engine: Annotated[str, typer.Option(help=engine_help())] = "openvino"
    precision: Annotated[
        str,
        typer.Option(
            help=f"{precision_help()} Default: the engine's first; the second for own models of "
            "more than 1 GB."
        ),
    ] = ""
    device: Device = "CPU"

    @property
    def spec(self) -> ModelSpec:
        """With no precision, see `usual_spec`. Raises DerbyError for an unknown engine."""
        model = OwnModel(self.model, self.engine, self.precision, self.device)
        spec = model.over(ModelSpec())
        return spec if self.precision else usual_spec(spec, say)


@dataclass(frozen=True, slots=True)
class Choosing:
    """How tokens are chosen."""

    temperature: Temperature = 0.0
    top_k: Annotated[int, typer.Option(help="0: off.")] = 0
    top_p: Annotated[float, typer.Option(help="1: off.")] = 1.0
    min_p: Annotated[float, typer.Option(help="0: off.")] = 0.0
    repetition_penalty: Annotated[float, typer.Option(help="1: off; more repeats less.")] = 1.0
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = 0

    @property
    def sampling(self) -> Sampling:
        return Sampling(**asdict(self))


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts to measure with."""

    prompts: Annotated[
        Path | None,
        typer.Option(
            help="Spec-Bench's or SPEED-Bench's questions, or a JSON Lines file like theirs. "
            "Default: six built-in prompts."
        ),
    ] = None
    limit: Limit = 0

    def read(self) -> tuple[Prompt, ...]:
        """Raises DerbyError for a file that holds none."""
        return sample(read_prompts(self.prompts) if self.prompts else PROMPTS, self.limit)


def unbundled(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer reads it: each field of a dataclass among its parameters is an option of
    its own, and all parameters go by name.
    """
    hints = get_type_hints(command, include_extras=True)
    bundles: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    options: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        entries = [(name, parameter.default, hints[name])]
        if name in bundles:
            of = get_type_hints(bundles[name], include_extras=True)
            entries = [
                (entry.name, entry.default, of[entry.name]) for entry in fields(bundles[name])
            ]
        options += [
            Parameter(option, Parameter.KEYWORD_ONLY, default=default, annotation=hint)
            for option, default, hint in entries
        ]

    @wraps(command)
    def run(**values: Any) -> None:
        for name, kind in bundles.items():
            values[name] = kind(**{entry.name: values.pop(entry.name) for entry in fields(kind)})
        command(**values)

    run.__signature__ = Signature(options)  # pyright: ignore[reportAttributeAccessIssue]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run
