"""Are intervals as sure as they say? One race repeated again and again: the interval of each repeat
should hold the median of all of them; of a column that is the baseline once more, 1.
"""

from collections.abc import Sequence
from statistics import median
from typing import Annotated

import typer

from backend.bench.runner import raced, wait_for_quiet
from backend.cli import options
from backend.cli.console import out, say
from backend.errors import DerbyError
from backend.models.files import BUILT_IN
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.intervals import Ratio
from backend.results.result import result_of
from backend.strategies.column import parse_column
from backend.strategies.registry import BASELINE
from backend.types import Request, Sampling

#: KV reuse beside KV reuse, and columns whose passes are wide.
LINE_UP = (BASELINE, BASELINE, "speculative", "lookup", "lookahead")


def coverage(
    prompts: options.PromptFile = None,
    limit: options.Limit = 0,
    model: options.Model = BUILT_IN,
    engine: options.Engine = "openvino",
    precision: options.Precision = "",
    device: options.Device = "CPU",
    max_new_tokens: options.MaxNewTokens = 96,
    temperature: options.Temperature = 0.0,
    column: options.Columns = list(LINE_UP),
    rounds: Annotated[int, typer.Option(min=1, help="Races of each prompt, in turns.")] = 10,
    wait: options.Wait = 30,
) -> None:
    """How often the interval of a race holds what its repeats show."""
    spec = options.target_of(model, engine, precision, device)
    models, chosen = LoadedModels(), options.prompts_of(prompts, limit)
    columns = tuple(map(parse_column, column))
    wait_for_quiet(wait, say)
    ratios = [[list[Ratio]() for _ in chosen] for _ in columns]
    for number in range(rounds):
        for place, prompt in enumerate(chosen):
            say(f"round {number + 1} of {rounds}, prompt {place + 1} of {len(chosen)}")
            request = Request(prompt.text, max_new_tokens, Sampling(temperature))
            rows = result_of(raced(Race(request, columns, spec), models)).rows
            if failures := {row.message for row in rows if row.message}:
                raise DerbyError("\n".join(failures))
            for of_column, row in zip(ratios, rows, strict=True):
                of_column[place].append(row.speedup)
    for each, of_column in list(zip(columns, ratios, strict=True))[1:]:
        truth = 1.0 if each == columns[0] else None
        out.print(f"{each}: {summary(of_column, truth)}")


def summary(prompts: Sequence[Sequence[Ratio]], truth: float | None = None) -> str:
    """How many of the races of each prompt had an interval, and how many of these held the truth;
    None: the median of that prompt's races.
    """
    held = [
        ratio.low <= (truth or median(each.value for each in repeats)) <= ratio.high
        for repeats in prompts
        for ratio in repeats
        if ratio.known
    ]
    if not held:
        return "no interval: raise --max-new-tokens."
    known = [ratio for repeats in prompts for ratio in repeats if ratio.known]
    width = median(ratio.high / ratio.low for ratio in known)
    return (
        f"{sum(held)} of {len(held)} intervals hold what the repeats show; the upper end is "
        f"{width:.2f} times the lower one (median)."
    )
