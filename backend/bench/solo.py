"""Every column alone: warmed up, order rotated, medians of per-prompt ratios.

Columns are compared within one run, because absolute times drift on shared machines and ratios do
not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from backend.bench.experiment import Experiment, Plan
from backend.bench.rotation import rounds
from backend.bench.runs import race_on, solo_runs, with_baseline
from backend.results.metrics import Score
from backend.strategies.registry import Strategy


@dataclass(frozen=True, slots=True)
class ColumnResult:
    """One column's medians over all prompts. Times in milliseconds.

    speedup: median of per-prompt ratios of decode time per token, KV reuse over this column, with
    its lowest and highest value in `spread`. end_to_end: the same for the whole answer's time per
    token, prefill included. overhead: a step's time outside draft, mask and forward. equal:
    prompts whose text was that of KV reuse, of those compared.
    """

    column: str
    category: str
    prompts: int
    ttft: float
    tpot: float
    speedup: float
    spread: tuple[float, float]
    end_to_end: float
    tokens_per_forward: float
    acceptance: float
    overhead: float
    mask: float
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
            scores
            for prompt, scores in zip(plan.prompts, runs, strict=True)
            if category in ("all", prompt.category)
        ]
        results += [
            _result(column, category, [(scores[0], scores[index]) for scores in chosen])
            for index, column in enumerate(columns)
        ]
    return results


def _result(column: Strategy, category: str, pairs: Sequence[tuple[Score, Score]]) -> ColumnResult:
    """Medians over (baseline, column) pairs; prompts answered by a single step say nothing."""
    ratios = [score.speedup_over(base) for base, score in pairs if base.tpot and score.tpot]
    scores = [score for _, score in pairs]
    return ColumnResult(
        column.label,
        category,
        len(pairs),
        median(s.ttft for s in scores) * 1e3,
        median(s.tpot for s in scores) * 1e3,
        median(ratios) if ratios else 0.0,
        (min(ratios, default=0.0), max(ratios, default=0.0)),
        median((b.seconds / len(b.tokens)) / (s.seconds / len(s.tokens)) for b, s in pairs),
        median(s.tokens_per_forward for s in scores),
        sum(s.accepted for s in scores) / max(sum(s.drafted for s in scores), 1),
        median(s.parts["rest"] / s.steps for s in scores) * 1e3,
        median(s.parts["mask"] / s.steps for s in scores) * 1e3,
        sum(s.tokens == b.tokens[: column.limit or len(b.tokens)] for b, s in pairs),
    )


SOLO = Experiment("solo", "every column alone, compared with KV reuse on the same prompts", solo)
