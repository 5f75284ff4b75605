"""Finds the settings to use here: measured costs, predicted speed-ups, and a check of each.

A speed-up is tokens per pass over the time of a pass. What a smaller k would have yielded can be
read off a run with a large one, since a round's guesses do not depend on how many are verified.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from backend.bench.plan import with_baseline
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
from backend.results.score import Score
from backend.strategies.column import Column, parse_column
from backend.strategies.registry import BASELINE, strategies
from backend.text import takes_chats
from backend.types import ModelSpec, Request


@dataclass(frozen=True, slots=True)
class Advice:
    """A setting as the command line takes it. Speed-ups over KV reuse; `predicted`, of all prompts
    together, from pass costs and from the acceptance of a run with the largest K, of that run
    itself in the case of auto, or from what lookahead usually yields; `measured` the median over
    prompts with its 95 % interval. None: that setting was not run, or on too few prompts for an
    interval.
    """

    setting: str
    tokens_per_forward: float
    predicted: float
    measured: float | None
    interval: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Tuning:
    """`best` is the measured winner among `rows`; "kv" if none is shown to beat the cache alone."""

    target: str
    costs: PassCosts
    draft_steps: dict[str, float]
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
        mine = alone + rounds + sum(min(a, k) * n for (_, a), n in score.depths.items())
        tokens += mine
        plain += mine * costs(1, context)
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
    candidates = [
        (name, candidate)
        for name, strategy in strategies().items()
        for candidate in strategy.candidates
    ]
    if not takes_chats(engine.tokenizer):
        say(RAW)
    runs = _Runs(target, prompts, tokens, models, say)
    rows: list[Advice] = []
    draft_steps: dict[str, float] = {}
    for name, candidate in candidates:
        text = _text(name, candidate.settings)
        try:
            if candidate.longest:
                scores = runs.scores(_text(name, candidate.settings, f"k={candidate.longest}"))
                if scores[0].draft_cost:
                    draft_steps[text] = scores[0].draft_cost
                rows += _family(text, candidate.longest, scores, costs.now, runs)
            else:
                promised = candidate.predict(costs.now) if candidate.predict else 0.0
                rows.append(runs.advice(text, promised))
        except DerbyError as error:
            say(str(error))
    if not rows:
        raise DerbyError(f"No setting could be run on {target}: the reasons are above.")
    best = winner((row.setting, row.measured, row.interval) for row in rows) or BASELINE
    return Tuning(str(target), costs.now, draft_steps, tuple(rows), best)


def _text(name: str, *settings: str) -> str:
    """A column in the command line's words."""
    given = ",".join(filter(None, settings))
    return f"{name}:{given}" if given else name


def _family(
    text: str, longest: int, scores: Sequence[Score], costs: PassCosts, runs: "_Runs"
) -> list[Advice]:
    """Predictions for every K; a few, the best among them, are checked by runs of their own."""
    promised = {k: predict(scores, k, costs) for k in range(1, longest + 1)}
    best = max(promised, key=lambda k: promised[k][1])
    rows: list[Advice] = []
    for k, (per_forward, speedup) in promised.items():
        setting = f"{text}{',' if ':' in text else ':'}k={k}"
        check = runs.speedup(setting) if k in (2, best, longest // 2, longest) else UNKNOWN
        rows.append(Advice(setting, per_forward, speedup, check.value or None, check.interval))
    return rows


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs columns on the prompts, each once, and beside each run one of KV reuse: on a machine
    whose speed drifts, only neighbours compare.
    """

    target: ModelSpec
    prompts: Sequence[Prompt]
    tokens: int
    models: LoadedModels
    say: Say
    _known: dict[str, list[Row]] = field(default_factory=dict)

    def scores(self, text: str) -> list[Score]:
        """A column's scores, prompt by prompt."""
        return [row.score for row in self._rows(text)]

    def _rows(self, text: str) -> list[Row]:
        """The column's row on each prompt."""
        if text not in self._known:
            self.say(f"running {text}")
            columns = with_baseline((parse_column(text),))
            self._known[text] = [
                self._row(columns, prompt, place) for place, prompt in enumerate(self.prompts)
            ]
        return self._known[text]

    def _row(self, columns: tuple[Column, ...], prompt: Prompt, place: int) -> Row:
        """Each alone; who begins rotates."""
        first, request = place % len(columns), Request(prompt.text, self.tokens)
        race = Race(request, columns, self.target, first=first, raw_allowed=True)
        return result_of(whole(raced(race, self.models))).rows[-1]

    def speedup(self, text: str) -> Ratio:
        """The column's median speed-up over KV reuse; short answers say nothing."""
        found = (row.speedup.value for row in self._rows(text))
        return median_ratio([speedup for speedup in found if speedup])

    def advice(self, text: str, promised: float) -> Advice:
        """`promised` is the prediction; 0: what the costs say of the passes that there were."""
        scores = self.scores(text)
        tokens = sum(s.tokens_per_forward * (s.steps - 1) for s in scores)
        passes = sum(s.steps - 1 for s in scores)
        seconds = sum(s.expected_seconds for s in scores)
        own = sum(s.plain_seconds for s in scores) / seconds if seconds else 0.0
        found = self.speedup(text)
        per_forward = tokens / max(passes, 1)
        return Advice(text, per_forward, promised or own, found.value or None, found.interval)
