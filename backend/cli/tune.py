"""python -m backend tune."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from backend.bench.prompts import MOST_PROMPTS, PROMPTS, read_prompts, sample
from backend.bench.tables import results_table
from backend.cli.console import out, say
from backend.cli.options import (
    AsJson,
    Device,
    EngineName,
    MaxNewTokens,
    Model,
    Precision,
    target_model,
)
from backend.cli.tables import curve
from backend.racing.models import LoadedModels


def tune(
    prompts: Annotated[
        Path | None, typer.Option(help="JSON Lines as for bench; default: six of our own.")
    ] = None,
    limit: Annotated[
        int, typer.Option(help="Use so many prompts; 0: all.", min=0, max=MOST_PROMPTS)
    ] = 4,
    model: Model = "built-in",
    engine: EngineName = "openvino",
    precision: Precision = "",
    device: Device = "CPU",
    max_new_tokens: MaxNewTokens = 96,
    as_json: AsJson = False,
) -> None:
    from backend.bench.tune import tune as measure_and_predict

    chosen = sample(read_prompts(prompts) if prompts else PROMPTS, limit)
    target = target_model(model, engine, precision, device)
    tuning = measure_and_predict(target, chosen, max_new_tokens, LoadedModels(), say)
    if as_json:
        print(json.dumps(asdict(tuning)))  # noqa: T201 (this is the output)
        return
    out.print(curve(tuning.costs, tuning.draft_steps))
    out.print(results_table(f"tune: {target}, {max_new_tokens} new tokens, greedy", tuning.rows))
    out.print(f"Use: -c {tuning.best}", highlight=False)
