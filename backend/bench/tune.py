"""Finds the settings to use here: candidates are raced beside the baseline while they can win."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median

from backend.bench.plan import Plan
from backend.bench.rows import Figures, row_of
from backend.bench.runner import raced
from backend.bench.summary import ALL, ColumnResult, Measured, results
from backend.costs import PassCosts
from backend.errors import DerbyError
from backend.models.files import Say
from backend.racing.ledger import Ledger
from backend.racing.models import LoadedModels
from backend.results.figures import listed
from backend.results.result import NOISY
from backend.strategies.column import Column, parse_column
from backend.strategies.registry import strategies

#: Columns that run beside one run of the baseline: where speed drifts, only neighbours compare.
BESIDE = 3

#: Less than this share of another's speed is slower, and not by chance.
SLOWER = 0.95


@dataclass(frozen=True, slots=True)
class Tuning:
    """`results` are named by columns as the command line takes them, the fastest first. `best` is
    the fastest that is shown to be faster than the baseline, if `others` left enough of the
    machine. `costs` None: a library's are not known.
    """

    baseline: str
    costs: PassCosts | None
    results: Sequence[ColumnResult]
    best: ColumnResult | None
    others: float


def tune(plan: Plan, models: LoadedModels, say: Say) -> Tuning:
    """Measure pass costs again, and run columns beside the plan's only one, the baseline, prompt by
    prompt, while they can win. Raises DerbyError if none can, or if the baseline fails.
    """
    ledger, say_once = Ledger(), cache(say)
    (baseline,), prompts, costs = plan.columns, len(plan.prompts), None
    if baseline.strategy.ours:
        models.begin([plan.target])
        engine = models.get(plan.target, say)
        models.measure_costs(engine, say, remeasure=True)
        costs = models.costs(engine).now
    running, figures = _candidates(plan), dict[Column, list[Figures]]()
    for number in range(prompts):
        for start in range(0, len(running), BESIDE):
            group = running[start : start + BESIDE]
            say_once(f"prompt {number + 1} of {prompts}: {listed(list(map(str, group)))}")
            trial = replace(plan, columns=(baseline, *group))
            job = trial.jobs[number]
            ((base, *others),) = row_of(trial, job, [raced(job.race, models, say_once)]).turns
            if isinstance(base, str) and base:
                raise DerbyError(base)
            for column, one in zip(group, others, strict=True):
                if isinstance(one, Figures):
                    figures.setdefault(column, []).append(one)
                elif one:
                    say_once(one)
        speedups = {
            column: [one.speedup for one in runs]
            for column, runs in figures.items()
            if len(runs) > number
        }
        running = contenders(speedups, prompts)
    if not figures:
        raise DerbyError(f"No setting could be run on {plan.target}: the reasons are above.")

    measurements = [
        Measured(str(column), ALL, number, one)
        for column, runs in figures.items()
        for number, one in enumerate(runs)
    ]
    ranking = sorted(results(measurements), key=lambda result: -(result.speedup or 0.0))
    others = ledger.conditions().others
    faster = (each for each in ranking if each.faster and each.prompts == prompts)
    return Tuning(
        str(baseline),
        costs if costs and costs.known else None,
        ranking,
        next(faster, None) if others <= NOISY else None,
        others,
    )


def _candidates(plan: Plan) -> list[Column]:
    """The columns to begin with: those of the baseline's strategy, or if that is ours of all
    others, and of libraries that run beside its engine.
    """
    (baseline,), engine = plan.columns, plan.target.engine
    return [
        parse_column(f"{name}:{settings}")
        for name, strategy in strategies().items()
        for beside in [strategy.library is None or strategy.library.like == engine]
        if name == baseline.name or (baseline.strategy.ours and beside)
        for settings in strategy.candidates
    ]


def contenders(speedups: Mapping[Column, Sequence[float]], prompts: int) -> list[Column]:
    """The columns that can still win, by their speed-ups on the prompts so far. One leaves that on
    half of all prompts, two at least, was SLOWER than the one with the highest median, or than the
    baseline. 0: an answer was too short to tell.
    """
    leader = max(speedups.values(), key=median, default=())
    marks = [SLOWER * max(speedup, 1.0) for speedup in leader]
    return [
        column
        for column, own in speedups.items()
        if sum(0 < speedup < mark for speedup, mark in zip(own, marks, strict=True))
        < max(2, prompts / 2)
    ]
