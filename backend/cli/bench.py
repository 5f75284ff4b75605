"""python -m backend bench."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from backend.bench.experiment import Plan
from backend.bench.prompts import MOST_PROMPTS, PROMPTS, read_prompts, sample
from backend.bench.quiet import wait_for_quiet
from backend.bench.registry import EXPERIMENTS, experiment_named
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
    Seed,
    Temperature,
    target_model,
)
from backend.cluster.spread import Results, comparisons, joined_results, spread
from backend.cluster.start import cluster_host
from backend.engines.registry import engine_named, offered_engines
from backend.errors import DerbyError, check_range
from backend.racing.ledger import Ledger
from backend.racing.models import LoadedModels
from backend.results.sentences import taken_by_others
from backend.strategies.column import parse_column
from backend.strategies.registry import DEFAULT_COLUMNS
from backend.types import ModelSpec, Request, Sampling

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
    cluster: Annotated[
        str,
        typer.Option(help="Spread the prompts over a Ray cluster: auto, or its head's address."),
    ] = "",
    also_model: Annotated[
        list[str], typer.Option(help="With --cluster: measure this model too; repeatable.")
    ] = [],  # noqa: B006 (typer copies it)
    results: Annotated[
        Path | None,
        typer.Option(help="With --cluster: a file that results are kept in, to go on from."),
    ] = None,
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
    if cluster and chosen.name != "solo":
        raise DerbyError(f"A cluster runs the experiment solo alone, and not {chosen.name}.")
    if cluster:
        targets = [replace(plan.target, name=name) for name in (model, *also_model)]
        spread_over(cluster, plan, targets, results, as_json=as_json)
        return
    wait_for_quiet(wait, say)
    ledger = Ledger()
    found = chosen.run(plan)
    say(f"Meanwhile {taken_by_others(ledger.conditions())}.")
    if not as_json:
        out.print(chosen.table(plan, found))
    print(json.dumps([asdict(result) for result in found]))  # noqa: T201 (for programs)


def spread_over(
    address: str,
    plan: Plan,
    targets: Sequence[ModelSpec],
    path: Path | None,
    *,
    as_json: bool,
) -> None:
    """Print what the solo experiment comes to over a cluster's machines. Raises DerbyError."""
    wanted = comparisons(plan.prompts, plan.columns, plan.request, targets)
    kept = Results(path, wanted)
    names = () if engine_named(plan.target.engine).models else [t.name for t in targets]
    host = cluster_host(
        address, models=names, engines=sorted({plan.target.engine, *offered_engines()})
    )
    try:
        spread(host, wanted, kept, say)
    finally:
        host.close()
    found = joined_results(kept.joined)
    if not as_json:
        out.print(results_table(f"solo, over a cluster: {plan.conditions}", found))
    print(json.dumps([asdict(result) for result in found]))  # noqa: T201 (for programs)
