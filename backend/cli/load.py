"""python -m backend load."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from backend.bench.load import load as measure
from backend.bench.plan import Plan
from backend.bench.prompts import MOST_PROMPTS, PROMPTS, read_prompts, sample
from backend.bench.quiet import wait_for_quiet
from backend.bench.tables import results_table
from backend.cli.console import out, say
from backend.cli.options import (
    AsJson,
    Columns,
    Device,
    EngineName,
    MaxNewTokens,
    Model,
    Precision,
    target_model,
)
from backend.racing.models import LoadedModels
from backend.strategies.column import parse_column
from backend.strategies.registry import DEFAULT_COLUMNS
from backend.types import Request


def load(
    prompts: Annotated[
        Path | None, typer.Option(help="JSON Lines as for bench; default: six of our own.")
    ] = None,
    limit: Annotated[
        int, typer.Option(help="Use so many prompts; 0: all.", min=0, max=MOST_PROMPTS)
    ] = 0,
    column: Columns = list(DEFAULT_COLUMNS),  # noqa: B006 (typer copies it)
    model: Model = "built-in",
    engine: EngineName = "openvino",
    precision: Precision = "",
    device: Device = "CPU",
    max_new_tokens: MaxNewTokens = 128,
    wait: Annotated[
        int, typer.Option(help="Wait so many seconds at most for the machine to be quiet.", min=0)
    ] = 30,
    as_json: AsJson = False,
) -> None:
    target = target_model(model, engine, precision, device)
    chosen = sample(read_prompts(prompts) if prompts else PROMPTS, limit)
    columns = tuple(map(parse_column, column))
    plan = Plan(chosen, columns, Request("-", max_new_tokens), (target,))
    wait_for_quiet(wait, say)
    found = measure(plan, LoadedModels(), say)
    if not as_json:
        out.print(results_table(f"load: {target}, {plan}", found))
    print(json.dumps([asdict(result) for result in found]))  # noqa: T201 (for programs)
