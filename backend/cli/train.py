"""python -m backend train."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from backend.cli.console import out, say
from backend.errors import check_range
from backend.models.files import BUILT_IN, model_files


def train(
    folder: Annotated[
        Path,
        typer.Argument(help="The folder for data and draft; about 1.2 kB per token."),
    ],
    answer_tokens: Annotated[
        int, typer.Option(min=1, help="The least tokens of answers to generate.")
    ] = 12_000_000,
    minutes: Annotated[float, typer.Option(help="How many minutes to train.")] = 240.0,
    model: Annotated[
        str, typer.Option(help="The target: built-in, a folder, or a Hub id.")
    ] = BUILT_IN,
    *,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the draft in the folder.")
    ] = False,
) -> None:
    check_range("minutes", minutes, 0.01, 60 * 24 * 365)
    # Torch's idle threads should sleep, not spin beside OpenVINO's. Torch reads the variable when
    # it is first imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from backend.training.targets import open_target
    from backend.training.train import Work, layers_of, recipe_for
    from backend.training.train import train as run

    layers_of(model_files(model, say))  # before anything large is made of the target
    target = open_target(model, say)
    work = Work(answer_tokens, minutes * 60, recipe_for(target), resume)
    report = run(folder, work, target, say)
    out.print_json(json.dumps(report))
