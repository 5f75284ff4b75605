"""python -m experiments specbench: every method by category, in the form of Spec-Bench's tables
(arXiv 2401.07851).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from backend.bench.plan import Plan
from backend.bench.prompts import read_prompts, sample
from backend.bench.quiet import wait_for_quiet
from backend.bench.rows import RowFile, left_of
from backend.bench.runner import raced, run
from backend.bench.summary import ALL, ColumnResult, failures, measured, results
from backend.bench.verify import runs_on
from backend.cli.console import say
from backend.cli.options import Columns, MaxNewTokens, Target, Temperature, Wait, parsed
from backend.racing.ledger import Ledger
from backend.racing.models import LoadedModels
from backend.results.figures import NONE
from backend.results.sentences import taken_by_others
from backend.types import Request, Sampling

#: Every method; those that the engine cannot run are left out.
METHODS = ("lookup", "lookahead", "speculative:draft=trained", "speculative")

#: Spec-Bench's tables call the eight categories of MT-bench by one name.
MULTI_TURN = [
    "writing",
    "roleplay",
    "reasoning",
    "math",
    "coding",
    "extraction",
    "stem",
    "humanities",
]


def specbench(
    prompts: Annotated[Path, typer.Option(help="Spec-Bench's questions, or a file of that form.")],
    target: Target,
    column: Columns = list(METHODS),
    questions: Annotated[
        int,
        typer.Option(
            min=0, help="Spread over the file; 0: all. A category needs four for an interval."
        ),
    ] = 24,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 0.0,
    rows: Annotated[
        Path | None,
        typer.Option("--results", help="JSON Lines; an interrupted run continues from it."),
    ] = None,
    wait: Wait = 30,
) -> None:
    """Measure the columns on the questions, and print a table in Markdown."""
    spec = target.spec
    plan = Plan(
        sample(read_prompts(prompts), questions),
        tuple(each for each in parsed(column) if runs_on(each, spec)),
        Request("-", max_new_tokens, Sampling(temperature)),
        (spec,),
    )
    kept = RowFile(rows, plan)
    if left_of(plan, kept.rows):
        wait_for_quiet(wait, say)
        ledger = Ledger()
        for row in run(plan, kept.rows, partial(raced, models=LoadedModels(), say=say), say):
            kept.add(row)
        say(f"Meanwhile {taken_by_others(ledger.conditions())}.")
    found = [
        replace(each, category="multi-turn") if each.category in MULTI_TURN else each
        for each in measured(plan, kept.rows)
    ]
    print(f"{spec}, {plan}\n\n{markdown(results(found))}")
    for sentence in failures(plan, kept.rows):
        say(sentence)


def markdown(found: Sequence[ColumnResult]) -> str:
    """A line a column, a cell a category: the speed-up over KV reuse with its 95 % interval, and
    tokens per pass.
    """
    prompts = {each.category: each.prompts for each in found}
    cells = {(each.column, each.category): _cell(each) for each in found}
    heads = ["method", *(f"{name} ({count})" for name, count in prompts.items()), "text equal"]
    lines = [heads, ["---"] * len(heads)]
    for each in (each for each in found if each.category == ALL):
        own = [cells.get((each.column, name), NONE) for name in prompts]
        lines.append([each.column, *own, f"{each.equal} of {each.prompts}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(result: ColumnResult) -> str:
    if result.speedup is None or result.tokens_per_forward is None:
        return NONE
    low_high = " ({:.2f}-{:.2f})".format(*result.interval) if result.interval else ""
    return f"{result.speedup:.2f}{low_high}, {result.tokens_per_forward:.2f}"
