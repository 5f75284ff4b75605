"""Are intervals as sure as they say? Races of KV reuse against itself, whose truth is 1."""

from collections.abc import Sequence
from statistics import median
from typing import Annotated

import typer

from backend.bench.runner import raced, wait_for_quiet, whole
from backend.cli.console import out, say
from backend.cli.options import MaxNewTokens, PromptSet, Target, Temperature, Wait
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.intervals import Ratio
from backend.results.result import result_of
from backend.strategies.column import default_column
from backend.strategies.registry import BASELINE
from backend.types import Request, Sampling


def coverage(
    prompts: PromptSet,
    target: Target,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 0.0,
    rounds: Annotated[int, typer.Option(min=1, help="Races, on the prompts in turn.")] = 3,
    wait: Wait = 30,
) -> None:
    """How often the interval of a column's race against itself holds 1."""
    column, spec, models, chosen = (
        default_column(BASELINE),
        target.spec,
        LoadedModels(),
        prompts.read(),
    )
    wait_for_quiet(wait, say)
    ratios: list[Ratio] = []
    for number in range(rounds):
        say(f"race {number + 1} of {rounds}")
        prompt = chosen[number % len(chosen)].text
        request = Request(prompt, max_new_tokens, Sampling(temperature))
        board = whole(raced(Race(request, (column, column), spec), models))
        ratios.append(result_of(board).rows[1].speedup)
    out.print(summary(ratios))


def summary(ratios: Sequence[Ratio]) -> str:
    """How many of the races were long enough for an interval, and the share of these whose interval
    held 1: 95 % if it is what it says.
    """
    known = [ratio for ratio in ratios if ratio.known]
    if not known:
        return f"{len(ratios)} races, no interval: raise --max-new-tokens."
    covered = sum(ratio.low <= 1 <= ratio.high for ratio in known) / len(known)
    width = median(ratio.high / ratio.low for ratio in known)
    return (
        f"{len(ratios)} races, {len(known)} intervals: {covered:.0%} hold 1; the upper end is "
        f"{width:.2f} times the lower one (median)."
    )
