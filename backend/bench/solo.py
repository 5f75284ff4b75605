"""Every column alone: warmed up, order rotated, medians of per-prompt ratios.

Columns are compared within one run, because absolute times drift on shared machines and ratios do
not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated

from backend.bench.experiment import Experiment, Plan
from backend.bench.rotation import rounds
from backend.bench.runs import median_figure, race_on, ratios_of, solo_runs, with_baseline
from backend.results.figures import figure
from backend.results.metrics import Score
from backend.strategies.column import Column


@dataclass(frozen=True, slots=True)
class ColumnResult:
    """One column's medians over all prompts. Times in milliseconds.

    speedup: median of per-prompt ratios of decode time, KV reuse over this column, for the same
    tokens, with its 95 % interval, and the lowest and highest ratio in `spread`. end_to_end: the
    same from the beginning, prefill included. overhead: a step's time outside draft, mask and
    forward. equal: prompts whose text was that of KV reuse, each time, of those compared.
    """

    column: str
    category: str
    prompts: int
    ttft: Annotated[float, figure("ttft")]
    tpot: Annotated[float, figure("tpot")]
    speedup: Annotated[float, figure("speedup")]
    interval: tuple[float, float] | None
    spread: tuple[float, float]
    end_to_end: float
    tokens_per_forward: Annotated[float, figure("tokens_per_forward")]
    acceptance: Annotated[float, figure("accepted")]
    overhead: float
    mask: Annotated[float, figure("mask_wait")]
    equal: int


def solo(plan: Plan) -> list[ColumnResult]:
    """Every column alone on every prompt; by category too where there is more than one."""
    columns = with_baseline(plan.columns)
    races = [race_on(prompt, columns, plan.request, plan.target) for prompt in plan.prompts]
    runs = rounds(
        solo_runs(len(columns), plan.models), races, plan.say_prompt, warm_up=len(columns)
    )
    categories = list(dict.fromkeys(prompt.category for prompt in plan.prompts))
    results: list[ColumnResult] = []
    for category in ("all", *(categories if len(categories) > 1 else ())):
        chosen = [
            (prompt.text, scores)
            for prompt, scores in zip(plan.prompts, runs, strict=True)
            if category in ("all", prompt.category)
        ]
        texts = [text for text, _ in chosen]
        results += [
            _result(column, category, texts, [(scores[0], scores[index]) for _, scores in chosen])
            for index, column in enumerate(columns)
        ]
    return results


def _result(
    column: Column, category: str, texts: Sequence[str], pairs: Sequence[tuple[Score, Score]]
) -> ColumnResult:
    """Medians over (baseline, column) pairs, each on the prompt of that text, which may come more
    than once; prompts answered by a single step say nothing.
    """
    measured = {
        i: ratio for i, (base, own) in enumerate(pairs) if (ratio := own.speedup_over(base))
    }
    ratios = ratios_of(list(measured.values()), [texts[i] for i in measured])
    limit = column.limit
    differ = {
        text
        for text, (base, own) in zip(texts, pairs, strict=True)
        if own.tokens != base.tokens[: limit or len(base.tokens)]
    }
    scores = [score for _, score in pairs]
    return ColumnResult(
        column.label,
        category,
        len(set(texts)),
        median_figure("ttft", pairs),
        median_figure("tpot", pairs),
        ratios.median,
        ratios.interval,
        ratios.spread,
        median(end_to_end(base, score) for base, score in pairs),
        median_figure("tokens_per_forward", pairs),
        sum(score.accepted for score in scores) / max(sum(s.drafted for s in scores), 1),
        median(score.parts["rest"] / score.steps for score in scores) * 1e3,
        median_figure("mask_wait", pairs),
        len(set(texts) - differ),
    )


def end_to_end(base: Score, score: Score) -> float:
    """The baseline's time over the column's, from the beginning of either to the last token that
    both have written.
    """
    last = min(base.written, score.written) - 1
    return base.times[last] / score.times[last]


SOLO = Experiment("solo", "every column alone, compared with KV reuse on the same prompts", solo)
