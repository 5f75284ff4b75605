"""python -m backend train."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from backend.cli.console import out, say
from backend.errors import check_range
from backend.models.files import BUILT_IN


def train(
    folder: Annotated[
        Path, typer.Argument(help="Where data and head are kept; about 1.2 kB a token.")
    ],
    answer_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of answers to synthesise, at least.")
    ] = 12_000_000,
    minutes: Annotated[float, typer.Option(help="How long to fit.")] = 240.0,
    model: Annotated[
        str, typer.Option(help="The target: built-in, a folder, or a Hub id.")
    ] = BUILT_IN,
    *,
    resume: Annotated[
        bool, typer.Option("--resume", help="Fit on from the folder's head, not from the target.")
    ] = False,
) -> None:
    check_range("minutes", minutes, 0.01, 60 * 24 * 365)
    # Torch's idle threads should sleep, not spin beside OpenVINO's. Torch reads the variable when
    # it is first imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from backend.training.targets import open_target
    from backend.training.train import Work, recipe_for
    from backend.training.train import train as run

    target = open_target(model, say)
    work = Work(answer_tokens, minutes * 60, recipe_for(target), resume)
    out.print_json(json.dumps(run(folder, work, target, say)))
