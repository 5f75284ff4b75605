"""python -m backend bench."""

import json
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from backend.bench.cluster import run_on_cluster
from backend.bench.plan import Plan
from backend.bench.quiet import wait_for_quiet
from backend.bench.rows import RowFile, left_of
from backend.bench.runner import raced, run
from backend.bench.summary import ALL, failures, measured, results
from backend.bench.tables import by_category, results_table
from backend.cli.console import out, say
from backend.cli.options import (
    AsJson,
    Choosing,
    Columns,
    MaxNewTokens,
    PromptSet,
    Raw,
    Target,
    Thinking,
    Wait,
    default_columns,
    parsed,
)
from backend.errors import DerbyError
from backend.racing.ledger import Ledger
from backend.racing.models import LoadedModels
from backend.results.sentences import taken_by_others
from backend.types import Request


def bench(
    prompts: PromptSet,
    target: Target,
    choosing: Choosing,
    column: Columns = default_columns(),  # noqa: B008 (typer copies it)
    repeats: Annotated[
        int, typer.Option(help="How often to run the whole set of prompts.", min=1)
    ] = 1,
    also_model: Annotated[
        list[str], typer.Option(help="Also measure this model. Repeatable.")
    ] = [],  # noqa: B006 (typer copies it)
    max_new_tokens: MaxNewTokens = 128,
    raw: Raw = False,
    fixed_length: Annotated[
        bool, typer.Option("--fixed-length", help="Every answer has --max-new-tokens tokens.")
    ] = False,
    thinking: Thinking = "",
    wait: Wait = 30,
    cluster: Annotated[
        str,
        typer.Option(
            help="Spread the prompts over a Ray cluster: auto, or the address of its head."
        ),
    ] = "",
    rows: Annotated[
        Path | None,
        typer.Option(
            "--results",
            help="A JSON Lines file for the results; an interrupted run continues from it.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    plan = Plan(
        [*prompts.read()] * repeats,
        parsed(column),
        Request(
            "-",
            max_new_tokens,
            choosing.sampling,
            not raw,
            ignore_eos=fixed_length,
            thinking=thinking,
        ),
        tuple(replace(target, model=name).spec for name in (target.model, *also_model)),
        anywhere=bool(cluster),
    )
    kept = RowFile(rows, plan)
    if cluster:
        for row in run_on_cluster(cluster, plan, kept.rows, say):
            kept.add(row)
    else:
        _measure_here(plan, kept, wait)
    found = results(measured(plan, kept.rows))
    for name in dict.fromkeys(result.model for result in found if not as_json):
        own = [result for result in found if result.model == name]
        whole = [result for result in own if result.category == ALL]
        out.print(results_table(f"bench: {name}, {plan}", whole))
        if len({result.category for result in own}) > 1:
            print(f"{by_category(own)}\n")
    print(json.dumps([asdict(result) for result in found]))
    if failed := failures(plan, kept.rows):
        raise DerbyError("\n".join(failed))


def _measure_here(plan: Plan, kept: RowFile, wait: int) -> None:
    if not left_of(plan, kept.rows):
        return
    wait_for_quiet(wait, say)
    ledger = Ledger()
    for row in run(plan, kept.rows, partial(raced, models=LoadedModels(), say=say), say):
        kept.add(row)
    say(f"Meanwhile {taken_by_others(ledger.conditions())}.")
