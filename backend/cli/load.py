"""python -m backend load."""

import json
from dataclasses import asdict

from backend.bench.load import load as measure
from backend.bench.plan import Plan
from backend.bench.quiet import wait_for_quiet
from backend.bench.tables import results_table
from backend.cli.console import out, say
from backend.cli.options import (
    AsJson,
    Columns,
    MaxNewTokens,
    PromptSet,
    Target,
    Wait,
    default_columns,
    parsed,
)
from backend.racing.models import LoadedModels
from backend.types import Request


def load(
    prompts: PromptSet,
    target: Target,
    column: Columns = default_columns(),  # noqa: B008 (typer copies it)
    max_new_tokens: MaxNewTokens = 128,
    wait: Wait = 30,
    as_json: AsJson = False,
) -> None:
    plan = Plan(prompts.read(), parsed(column), Request("-", max_new_tokens), (target.spec,))
    wait_for_quiet(wait, say)
    found = measure(plan, LoadedModels(), say)
    if not as_json:
        out.print(results_table(f"load: {target.spec}, {plan}", found))
    print(json.dumps([asdict(result) for result in found]))
