"""Every column alone: warmed up, order rotated, medians of per-prompt ratios.

Columns are compared within one run, because absolute times drift on shared machines and ratios do
not.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated

from backend.bench.experiment import Experiment, Plan
from backend.bench.prompts import Prompt
from backend.bench.rotation import rounds
from backend.bench.runs import race_on, ratios_of, solo_runs, with_baseline
from backend.results.figures import figure
from backend.results.metrics import Score
from backend.strategies.column import Column


@dataclass(frozen=True, slots=True)
class ColumnResult:
    """One column's medians over all prompts. Times in milliseconds.

    clock: whose time it is, as a score has it. speedup: median of per-prompt ratios of decode time,
    KV reuse over this column, for the same tokens, with its 95 % interval, which only one clock
    has, and the lowest and highest ratio in `spread`. end_to_end: the same from the beginning,
    prefill included. overhead: a step's time outside draft, mask and forward. equal: prompts whose
    text was that of KV reuse, each time, of those compared. None: unknown, as much is of servers.
    """

    column: str
    clock: str
    category: str
    prompts: int
    ttft: Annotated[float | None, figure("ttft")]
    tpot: Annotated[float | None, figure("tpot")]
    speedup: Annotated[float | None, figure("speedup")]
    interval: tuple[float, float] | None
    spread: tuple[float, float] | None
    end_to_end: float | None
    tokens_per_forward: Annotated[float | None, figure("tokens_per_forward")]
    acceptance: Annotated[float | None, figure("accepted")]
    overhead: float | None
    mask: Annotated[float | None, figure("mask_wait")]
    equal: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One column on one prompt, the one of that number, beside KV reuse alone on the same.

    speedup and end_to_end as in `ColumnResult`, 0 where the prompt was answered by a single step,
    and where nobody knows how many tokens a step wrote; ttft, tpot, tokens_per_forward and mask in
    their figures' units, overhead in milliseconds, None where unknown; drafted and accepted are
    counts.
    """

    column: str
    category: str
    prompt: int
    speedup: float
    end_to_end: float
    ttft: float | None
    tpot: float | None
    tokens_per_forward: float | None
    mask: float | None
    drafted: int
    accepted: int
    overhead: float | None
    equal: bool
    clock: str


def solo(plan: Plan) -> list[ColumnResult]:
    """Every column alone on every prompt; by category too where there is more than one."""
    columns = with_baseline(plan.columns)
    races = [race_on(prompt, columns, plan.request, plan.target) for prompt in plan.prompts]
    runs = rounds(
        solo_runs(len(columns), plan.models), races, plan.say_prompt, warm_up=len(columns)
    )
    numbers = numbered(plan.prompts)
    found = [
        measured(column, prompt.category, number, scores[0], score)
        for prompt, number, scores in zip(plan.prompts, numbers, runs, strict=True)
        for column, score in zip(columns, scores, strict=True)
    ]
    return results(found)


def numbered(prompts: Sequence[Prompt]) -> list[int]:
    """A number for each prompt, the same for the same text."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(prompt.text, len(numbers)) for prompt in prompts]


def measured(column: Column, category: str, prompt: int, base: Score, score: Score) -> Measured:
    """What a column's run says beside the baseline's on the same prompt."""
    known = {
        name: figure(name).value(score, base)
        for name in ("ttft", "tpot", "tokens_per_forward", "mask_wait")
    }
    limit = column.limit or len(base.tokens)
    ours = score.clock == "own"  # a token's id means nothing on a server
    return Measured(
        column.label,
        category,
        prompt,
        score.speedup_over(base),
        end_to_end(base, score),
        known["ttft"],
        known["tpot"],
        known["tokens_per_forward"],
        known["mask_wait"],
        score.drafted,
        score.accepted,
        score.parts.get("rest", 0.0) / max(score.steps, 1) * 1e3 if ours else None,
        score.tokens == base.tokens[:limit] if ours else score.text == base.text,
        score.clock,
    )


def results(found: Sequence[Measured]) -> list[ColumnResult]:
    """Every column's results on all prompts, and by category where there is more than one."""
    columns = list(dict.fromkeys(each.column for each in found))
    categories = list(dict.fromkeys(each.category for each in found))
    return [
        _result(
            [m for m in found if m.column == column and category in ("all", m.category)], category
        )
        for category in ("all", *(categories if len(categories) > 1 else ()))
        for column in columns
    ]


def _result(found: Sequence[Measured], category: str) -> ColumnResult:
    """One column's medians. A prompt may come more than once; those answered by a single step say
    nothing of speed.
    """
    fast = [each for each in found if each.speedup]
    ratios = ratios_of([each.speedup for each in fast], [each.prompt for each in fast])
    prompts = {each.prompt for each in found}
    clocks, drafted = {each.clock for each in found}, sum(each.drafted for each in found)
    return ColumnResult(
        found[0].column,
        " and ".join(sorted(clocks)),
        category,
        len(prompts),
        _median(each.ttft for each in found),
        _median(each.tpot for each in found),
        ratios.median or None,
        ratios.interval if clocks == {"own"} else None,
        ratios.spread if fast else None,
        _median(each.end_to_end or None for each in found),
        _median(each.tokens_per_forward for each in found),
        sum(each.accepted for each in found) / drafted if drafted else None,
        _median(each.overhead for each in found),
        _median(each.mask for each in found),
        len(prompts - {each.prompt for each in found if not each.equal}),
    )


def _median(values: Iterable[float | None]) -> float | None:
    """The median of those that are known."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def end_to_end(base: Score, score: Score) -> float:
    """The baseline's time over the column's, from the beginning of either to the last token that
    both have written; 0 where that is not known.
    """
    last = min(len(base.times), len(score.times)) - 1
    return base.times[last] / score.times[last] if last >= 0 else 0.0


SOLO = Experiment("solo", "every column alone, compared with KV reuse on the same prompts", solo)
