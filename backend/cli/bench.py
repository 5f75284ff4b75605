"""python -m backend bench, tune, verify: many prompts."""

import json
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from backend.bench.cluster import run_on_cluster
from backend.bench.plan import Plan
from backend.bench.prompts import PROMPTS
from backend.bench.rows import RowFile, remaining
from backend.bench.runner import raced, run, wait_for_quiet
from backend.bench.summary import (
    ALL,
    HEADINGS,
    by_category,
    cells,
    conclusion,
    failures,
    interval_of,
    measured,
    results,
)
from backend.bench.tune import Tuning
from backend.bench.tune import tune as tuned
from backend.bench.verify import PENALIZED, TARGETS, cases, verified_columns
from backend.bench.verify import verify as verified
from backend.cli import options
from backend.cli.console import out, print_table, say, visible
from backend.engines.registry import offered_engines
from backend.errors import DerbyError
from backend.models.files import BUILT_IN
from backend.racing.models import LoadedModels
from backend.results.figures import factor, milliseconds
from backend.results.intervals import LEAST
from backend.results.result import NOISY
from backend.results.sentences import noise
from backend.strategies.column import parse_column
from backend.strategies.registry import usual_columns
from backend.types import ModelSpec, Request, Sampling


def bench(
    prompts: options.PromptFile = None,
    limit: options.Limit = 0,
    model: options.Model = BUILT_IN,
    engine: options.Engine = "openvino",
    precision: options.Precision = "",
    device: options.Device = "CPU",
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    seed: options.Seed = 0,
    column: options.Columns = [],
    max_new_tokens: options.MaxNewTokens = 128,
    raw: options.Raw = False,
    fixed_length: options.FixedLength = False,
    thinking: options.Thinking = "",
    wait: options.Wait = 30,
    cluster: Annotated[
        str,
        typer.Option(help="Spread the prompts over a Ray cluster: auto, or its head's address."),
    ] = "",
    rows: Annotated[
        Path | None, typer.Option("--results", help="A JSON Lines file, with which it can go on.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure every column alone, warmed up, on a set of prompts. Can be continued."""
    plan = Plan(
        options.prompts_of(prompts, limit),
        tuple(map(parse_column, column or usual_columns(model))),
        Request(
            "-",
            max_new_tokens,
            Sampling(temperature, top_k, top_p, seed, min_p, repetition_penalty),
            not raw,
            ignore_eos=fixed_length,
            thinking=thinking,
        ),
        options.target_of(model, engine, precision, device),
        anywhere=bool(cluster),
    )
    file = RowFile(rows, plan)
    if cluster:
        for row in run_on_cluster(cluster, plan, file.rows, say):
            file.add(row)
    elif remaining(plan, file.rows):
        wait_for_quiet(wait, say)
        for row in run(plan, file.rows, partial(raced, models=LoadedModels(), say=say), say):
            file.add(row)
    summary = results(measured(plan, file.rows))
    over_all = [result for result in summary if result.category == ALL]
    if as_json:
        print(json.dumps([asdict(result) for result in summary]))
    else:
        print_table(f"bench: {plan}", HEADINGS, map(cells, over_all))
        if len(summary) > len(over_all):
            print(visible(by_category(summary)))
    say(conclusion(plan, over_all, file.rows))
    if failed := "\n".join(failures(plan, file.rows)):
        if column or not over_all:
            raise DerbyError(failed)
        say(failed)


def tune(
    prompts: options.PromptFile = None,
    limit: options.Limit = 4,  # which tell settings apart within minutes
    model: options.Model = BUILT_IN,
    engine: options.Engine = "openvino",
    precision: options.Precision = "",
    device: options.Device = "CPU",
    max_new_tokens: options.MaxNewTokens = 96,
    raw: options.Raw = False,
    wait: options.Wait = 30,
    as_json: options.AsJson = False,
) -> None:
    """Find the fastest settings here: pass times and measured speed-ups (minutes)."""
    plan = Plan(
        options.prompts_of(prompts, limit),
        (),
        Request("-", max_new_tokens, chat=not raw),
        options.target_of(model, engine, precision, device),
    )
    wait_for_quiet(wait, say)
    tuning = tuned(plan, LoadedModels(), say)
    if as_json:
        print(json.dumps(asdict(tuning)))
        return
    if (costs := tuning.costs) is not None:
        lines = [
            (f"{rows}", milliseconds(seconds * 1e3), factor(costs.relative(rows)))
            for rows, seconds in zip(costs.widths, costs.seconds, strict=True)
        ]
        print_table("Time of a pass over k rows", ("k", "ms", "over one row"), lines)
    print_table(f"tune: {plan}", HEADINGS, map(cells, tuning.results))
    conclude(tuning, plan)


def conclude(tuning: Tuning, plan: Plan) -> None:
    """Print the column to use, and how sure that is."""
    best, baseline, prompts = tuning.best, plan.names[plan.baseline], len(plan.prompts)
    if warning := noise(tuning.others):
        say(warning)
    if tuning.others > NOISY:
        return
    if best is not None:
        times = f"{factor(best.speedup or 0.0)} ({interval_of(best)})"
        say(f"{times} as fast as {baseline} on {prompts} prompts, the same text on {best.equal}.")
    elif prompts < LEAST:
        say(f"With fewer than {LEAST} prompts no setting can be shown to be faster: raise --limit.")
    else:
        say(f"No setting is shown to be faster than {baseline}.")
    out.print(f"Use: -c {best.column if best else tuning.baseline}")


COMPARED = [*offered_engines()]


def verify(
    column: options.Columns = [],
    engine: Annotated[list[str], typer.Option(help="An engine to check. Repeatable.")] = COMPARED,
    prompts: Annotated[
        int, typer.Option(help="How many of the six prompts to use.", min=1, max=len(PROMPTS))
    ] = len(PROMPTS),
    model: options.Model = BUILT_IN,
    device: options.Device = "CPU",
    max_new_tokens: options.MaxNewTokens = 96,
    raw: options.Raw = False,
) -> None:
    """Check that lossless columns, or those of -c, write the text of KV reuse; else exit code 1."""
    promised = [
        replace(target, name=model, device=device)
        for target in TARGETS
        if target.engine in engine and (model == BUILT_IN or target.precision != "int4-exact")
    ]
    others = set(engine) - {target.engine for target in promised}
    targets = (*promised, *(ModelSpec(model, name, device=device) for name in sorted(others)))
    usual, unequal = Request("-", max_new_tokens, chat=not raw), 0
    chosen = (
        *cases(usual, targets, PROMPTS[:prompts]),
        *cases(replace(usual, ignore_eos=True), targets, PROMPTS[:1], PENALIZED),
    )
    columns = verified_columns(column)
    for number, result in enumerate(verified(chosen, LoadedModels(), columns), 1):
        case, sampling = result.case, result.case.request.sampling
        unequal += not result.equal
        equality = f"{len(result.differences)} columns equal" if result.equal else "NOT EQUAL"
        out.print(
            f"{number}/{len(chosen)} {case.target.engine} {case.target.precision} "
            f"{case.category} {sampling} seed={sampling.seed}: {equality}, "
            f"{result.tokens} tokens"
        )
        for name, sentence in result.differences.items():
            if sentence:
                out.print(f"    {name}: {sentence}")
    out.print(f"{len(chosen) - unequal} of {len(chosen)} cases: all columns equal")
    raise typer.Exit(1 if unequal else 0)
