"""Finds the settings to use here: measured costs, predicted speed-ups, and a check of each.

A speed-up is tokens per pass over the time of a pass. What a smaller k would have yielded can be
read off a run with a large one, since a round's guesses do not depend on how many are verified.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from backend.bench.prompts import Prompt
from backend.bench.runner import RAW, raced, whole
from backend.bench.summary import winner
from backend.costs import PassCosts
from backend.errors import DerbyError
from backend.models.files import Say
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.intervals import UNKNOWN, Ratio, median_ratio
from backend.results.result import Row, result_of
from backend.results.scoreboard import Score
from backend.strategies.column import parse_column
from backend.strategies.registry import BASELINE, strategies
from backend.text import takes_chats
from backend.types import ModelSpec, Request

#: Gives a column's row of the result on each prompt.
Run = Callable[[str], Sequence[Row]]


@dataclass(frozen=True, slots=True)
class Advice:
    """A setting as the command line takes it. Speed-ups over KV reuse; `predicted`, of all prompts
    together, from pass costs and from the acceptance of a run with the largest K, or from what
    lookahead usually yields; `measured` the median over prompts with its 95 % interval. None:
    auto, which predicts nothing; not run; or run on too few prompts for an interval.
    """

    setting: str
    tokens_per_pass: float
    predicted: float | None
    measured: float | None
    interval: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Tuning:
    """`best` is the measured winner among `rows`; "kv" if none is shown to beat the cache alone."""

    costs: PassCosts
    rows: tuple[Advice, ...]
    best: str


def predict(scores: Iterable[Score], k: int, costs: PassCosts) -> tuple[float, float]:
    """Tokens a forward, and the speed-up over plain decoding, had rounds drafted `k` tokens at
    most and passes cost what `costs` say. `scores` are runs with a fixed, larger K; prefill not
    counted.
    """
    tokens = seconds = plain = passes = 0.0
    for score in scores:
        context = score.prompt_tokens + len(score.tokens) // 2
        rounds = sum(score.depths.values())
        alone = max(score.steps - 1 - rounds, 0)
        calls = score.calls / max(score.drafted, 1)  # a round's, for each of its tokens
        for (drafted, _), n in score.depths.items():
            depth = min(drafted, k)
            seconds += n * (costs(1 + depth, context) + depth * calls * score.draft_cost)
        seconds += alone * costs(1, context)
        # Between rounds that guess and those that do not, the width changes to and fro.
        seconds += costs.width_change * 2 * alone * rounds / max(alone + rounds, 1) * (k > 0)
        committed = alone + rounds + sum(min(a, k) * n for (_, a), n in score.depths.items())
        tokens += committed
        plain += committed * costs(1, context)
        passes += alone + rounds
    return tokens / max(passes, 1), plain / seconds if seconds else 0.0


def tune(
    target: ModelSpec, prompts: Sequence[Prompt], tokens: int, models: LoadedModels, say: Say
) -> Tuning:
    """Measure pass costs again, run every family on `prompts`, greedy, `tokens` each.

    Each prediction is made by what passes are known to cost by then: the runs correct it. Prompts
    are sent raw where there is no chat template. Raises DerbyError if no family can be run.
    """
    models.begin([target])
    engine = models.get(target, say)
    models.price(engine, say, remeasure=True)
    costs = models.costs(engine)
    if not takes_chats(engine.tokenizer):
        say(RAW)

    @cache
    def run(setting: str) -> list[Row]:
        """KV reuse runs beside each column: on a machine whose speed drifts, only neighbours
        compare. Who begins rotates.
        """
        say(f"running {setting}")
        columns = (parse_column(BASELINE), parse_column(setting))
        return [
            result_of(
                whole(
                    raced(
                        Race(
                            Request(prompt.text, tokens),
                            columns,
                            target,
                            alone_from=place % len(columns),
                            raw_allowed=True,
                        ),
                        models,
                    )
                )
            ).rows[-1]
            for place, prompt in enumerate(prompts)
        ]

    rows: list[Advice] = []
    for name, strategy in strategies().items():
        for candidate in strategy.candidates:
            setting = ":".join(filter(None, (name, candidate.settings)))
            try:
                if candidate.longest:
                    rows += _family(setting, candidate.longest, costs.now, run)
                else:
                    known = candidate.predict(costs.now) if candidate.predict else None
                    rows.append(_advice(setting, known, run))
            except DerbyError as error:
                say(str(error))
    if not rows:
        raise DerbyError(f"No setting could be run on {target}: the reasons are above.")
    best = winner((row.setting, row.measured, row.interval) for row in rows) or BASELINE
    return Tuning(costs.now, tuple(rows), best)


def _family(setting: str, longest: int, costs: PassCosts, run: Run) -> list[Advice]:
    """Predictions for every K; a few, the best among them, are checked by runs of their own."""
    join = "," if ":" in setting else ":"
    scores = [row.score for row in run(f"{setting}{join}k={longest}")]
    predictions = {k: predict(scores, k, costs) for k in range(1, longest + 1)}
    best = max(predictions, key=lambda k: predictions[k][1])
    rows: list[Advice] = []
    for k, (per_forward, speedup) in predictions.items():
        checked = k in (2, best, longest // 2, longest)
        ratio = _speedup(run(f"{setting}{join}k={k}")) if checked else UNKNOWN
        rows.append(
            Advice(
                f"{setting}{join}k={k}", per_forward, speedup, ratio.value or None, ratio.interval
            )
        )
    return rows


def _speedup(rows: Iterable[Row]) -> Ratio:
    """The median speed-up over KV reuse; short answers say nothing."""
    return median_ratio([row.speedup.value for row in rows if row.speedup.value])


def _advice(setting: str, predicted: float | None, run: Run) -> Advice:
    rows = run(setting)
    ratio = _speedup(rows)
    per_forward = sum(row.amount for row in rows) / max(sum(row.passes for row in rows), 1)
    return Advice(setting, per_forward, predicted, ratio.value or None, ratio.interval)
