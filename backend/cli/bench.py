"""python -m backend bench."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from backend.bench.experiment import Plan
from backend.bench.prompts import MOST_PROMPTS, PROMPTS, read_prompts, sample
from backend.bench.quiet import wait_for_quiet
from backend.bench.registry import EXPERIMENTS, experiment_named
from backend.cli.console import out, say
from backend.cli.options import (
    AsJson,
    Columns,
    Device,
    EngineName,
    MaxNewTokens,
    Model,
    Precision,
    Seed,
    Temperature,
    target_model,
)
from backend.errors import check_range
from backend.racing.ledger import Ledger
from backend.racing.models import LoadedModels
from backend.results.sentences import taken_by_others
from backend.strategies.column import parse_column
from backend.strategies.registry import DEFAULT_COLUMNS
from backend.types import Request, Sampling

EXPERIMENT_HELP = "; ".join(f"{name}: {each.help}" for name, each in EXPERIMENTS.items()) + "."


def bench(
    experiment: Annotated[str, typer.Option(help=EXPERIMENT_HELP)] = "solo",
    prompts: Annotated[
        Path | None,
        typer.Option(help="JSON Lines with category and turns; default: six of our own."),
    ] = None,
    limit: Annotated[
        int, typer.Option(help="Use so many prompts, spread over the file; 0: all.")
    ] = 0,
    repeats: Annotated[
        int, typer.Option(help="Use every prompt so many times, one after all others.", min=1)
    ] = 1,
    column: Columns = list(DEFAULT_COLUMNS),  # noqa: B006 (typer copies it)
    model: Model = "built-in",
    engine: EngineName = "openvino",
    precision: Precision = "",
    device: Device = "CPU",
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    wait: Annotated[
        int, typer.Option(help="Wait so many seconds at most for the machine to be quiet.", min=0)
    ] = 30,
    as_json: AsJson = False,
) -> None:
    chosen = experiment_named(experiment)
    check_range("limit", limit, 0, MOST_PROMPTS)
    plan = Plan(
        [*sample(read_prompts(prompts) if prompts else PROMPTS, limit)] * repeats,
        tuple(parse_column(name) for name in column),
        Request("-", max_new_tokens, Sampling(temperature, seed=seed)),
        target_model(model, engine, precision, device),
        LoadedModels(),
        say,
        limit or 3,
    )
    wait_for_quiet(wait, say)
    ledger = Ledger()
    results = chosen.run(plan)
    say(f"Meanwhile {taken_by_others(ledger.conditions())}.")
    if not as_json:
        out.print(chosen.table(plan, results))
    print(json.dumps([asdict(result) for result in results]))  # noqa: T201 (for programs)
