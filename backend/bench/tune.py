"""Finds the settings to use here: measured costs, predicted speed-ups, and a check of each.

A speed-up is tokens per pass over the time of a pass. What a smaller k would have yielded can be
read off a run with a large one, since a round's guesses do not depend on how many are verified.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median

from backend.bench.plan import Plan
from backend.bench.rows import figures_of
from backend.bench.runner import raced
from backend.bench.summary import ALL, ColumnResult, Measured, results
from backend.costs import UNKNOWN_COSTS, Costs, PassCosts
from backend.errors import DerbyError
from backend.models.files import Say
from backend.racing.ledger import Ledger
from backend.racing.models import LoadedModels
from backend.results.figures import listed
from backend.results.result import NOISY, Row, result_of
from backend.results.scoreboard import MOST_POSITIONS, Score
from backend.strategies.column import Column, parse_column
from backend.strategies.registry import strategies

#: Values of k of which speed-ups are predicted, and how many of these are run, the best ones.
LENGTHS, CHECKED = (1, 2, 3, 4, 6, 8, 12, 16), 2

#: Columns that run beside one run of the baseline: where speed drifts, only neighbours compare.
BESIDE = 3

#: Less than this share of another's speed is slower, and not by chance.
SLOWER = 0.95


@dataclass(frozen=True, slots=True)
class Tuning:
    """`results` are named by columns as the command line takes them, the fastest first. Some have
    predicted speed-ups, by pass costs and the acceptance of a run with the largest k. `best` is the
    fastest that is shown to be faster than the baseline, if `others` left enough of the machine.
    `costs` None: a library's are not known.
    """

    baseline: str
    costs: PassCosts | None
    results: Sequence[ColumnResult]
    predicted: Mapping[str, float]
    best: ColumnResult | None
    others: float


def predict(scores: Iterable[Score], costs: PassCosts, k: int = MOST_POSITIONS) -> float:
    """The median speed-up over plain decoding, had rounds drafted `k` tokens at most and passes
    cost what `costs` say. `scores` are runs with a fixed, larger K; prefill not counted.
    """
    return median(_predict(score, costs, k) for score in scores)


def _predict(score: Score, costs: PassCosts, k: int) -> float:
    context = score.prompt_tokens + len(score.tokens) // 2
    rounds = sum(score.depths.values())
    passes = committed = max(score.steps - 1, rounds, 1)
    plain, guesses = passes - rounds, 0
    seconds = plain * costs(1, context)
    for (drafted, accepted), n in score.depths.items():
        seconds += n * costs(1 + min(drafted, k), context)
        guesses += n * min(drafted, k)
        committed += n * min(accepted, k)
    # Between rounds that guess and those that do not, the width changes to and fro.
    seconds += 2 * plain * (1 - plain / passes) * costs.width_change
    calls = score.calls / max(score.drafted, 1)  # of the draft, for each guess
    seconds += guesses * calls * score.draft_cost
    return committed * costs(1, context) / seconds


def tune(plan: Plan, models: LoadedModels, say: Say) -> Tuning:
    """Measure pass costs again, and run columns beside the plan's only one, the baseline, while
    they can win. Raises DerbyError if none can.
    """
    ledger, say_once = Ledger(), cache(say)
    (baseline,) = plan.columns
    costs: Costs = UNKNOWN_COSTS
    if baseline.strategy.ours:
        models.begin([plan.target])
        engine = models.get(plan.target, say)
        models.price(engine, say, remeasure=True)
        costs = models.costs(engine)
    columns, rows = _candidates(plan), dict[Column, list[Row]]()
    families = [column for column in columns if column.strategy.ours and "k" in column.changed()]
    _measure(plan, columns, families, rows, models, say_once)
    predicted: dict[Column, float] = {}
    for column in families:
        if column in rows:
            predicted |= _predicted(column, [row.score for row in rows[column]], costs.now)
    _measure(plan, [new for new in predicted if new not in rows], (), rows, models, say_once)
    if not rows:
        raise DerbyError(f"No setting could be run on {plan.target}: the reasons are above.")

    measurements = (
        Measured(str(column), ALL, n, figures_of(row, equal=row.comparison.like == 0, clock="own"))
        for column, runs in rows.items()
        for n, row in enumerate(runs)
    )
    ranking = sorted(results(measurements), key=lambda result: -(result.speedup or 0.0))
    others, number = ledger.conditions().others, len(plan.prompts)
    faster = (each for each in ranking if each.faster and each.prompts == number)
    return Tuning(
        str(baseline),
        costs.now if costs.now.known else None,
        ranking,
        {str(column): speedup for column, speedup in predicted.items()},
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


def _predicted(longest: Column, scores: Sequence[Score], costs: PassCosts) -> dict[Column, float]:
    """Speed-ups of a column with the longest k, which ran, and with the best others."""
    lengths = [k for k in LENGTHS if k <= longest.settings()["k"]]
    speedups = {longest.with_settings({"k": k}): predict(scores, costs, k) for k in lengths}
    best = sorted(speedups, key=lambda column: -speedups[column])[:CHECKED]
    return {longest: predict(scores, costs)} | {column: speedups[column] for column in best}


def _measure(
    plan: Plan,
    columns: Iterable[Column],
    families: Collection[Column],
    rows: dict[Column, list[Row]],
    models: LoadedModels,
    say: Say,
) -> None:
    """Run columns beside the baseline, prompt by prompt, while they can win, or to the end if
    `families` are predicted by them, and add what they come to to `rows`. Raises DerbyError if the
    baseline fails.
    """
    running = list(columns)
    for job in plan.jobs:
        for start in range(0, len(running), BESIDE):
            group = running[start : start + BESIDE]
            say(f"prompt {job.number + 1} of {len(plan.jobs)}: {listed(list(map(str, group)))}")
            race = replace(plan, columns=(*plan.columns, *group)).jobs[job.number].race
            baseline, *others = result_of(raced(race, models, say)).rows
            if baseline.state == "failed":
                raise DerbyError(baseline.message)
            for column, row in zip(group, others, strict=True):
                if row.state == "failed":
                    say(row.message)
                else:
                    rows.setdefault(column, []).append(row)
        speedups = {
            column: [row.speedup.value for row in runs[: job.number + 1]]
            for column, runs in rows.items()
            if len(runs) > job.number
        }
        able = {*contenders(speedups, len(plan.jobs)), *families}
        running = [column for column in running if column in able & speedups.keys()]


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
