"""Does speculation pay under load? Many requests at once, in lockstep, and what was predicted."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, sqrt
from statistics import mean
from time import perf_counter

from backend.bench.plan import Plan
from backend.costs.load import LoadCosts
from backend.costs.pass_costs import Costs
from backend.engines.base import Engine
from backend.engines.cache import COMPACTION_BASE, COMPACTION_PER_ROW
from backend.engines.lockstep import Lockstep, LockstepPass
from backend.errors import DerbyError
from backend.events import Step
from backend.grammar.sandbox.parent import never
from backend.racing.loading import Loading
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.metrics import Score
from backend.strategies.column import Column
from backend.types import ModelSpec, Request

Say = Callable[[str], None]

#: Passes in which every request takes part that make a throughput worth telling.
FEWEST_PASSES = 8


@dataclass(frozen=True, slots=True)
class LoadResult:
    """One column at so many requests at once.

    throughput: tokens a second of all of them together while all were decoding; None if the first
    one ended too soon. predicted: the same, from T(k, b) and from how the column does on the same
    prompts alone; ratio: that over the measured one. speedup and predicted_speedup: over KV reuse
    at as many requests. tokens_per_forward: of a request's pass. rows: those of an average pass for
    each request, spare ones included. equal: requests whose text was the one that the column
    writes alone, of all.
    """

    column: str
    requests: int
    throughput: float | None
    predicted: float
    ratio: float | None
    speedup: float | None
    predicted_speedup: float
    tokens_per_forward: float
    rows: float
    equal: str


@dataclass(frozen=True, slots=True)
class Alone:
    """What a column did on its own: the text by prompt, and of its steps behind the first one what
    a pass computes and yields, the seconds from one to the next, the tokens that it reads, and how
    many there are until the first text ends.
    """

    tokens: dict[str, list[int]]
    widths: Counter[int]
    committed: float
    rest: float
    context: float
    passes: int

    def predicted(self, costs: LoadCosts, requests: int) -> float:
        """Tokens a second of so many of them: a pass is as wide as the widest of them asks for, and
        what it adds beyond the tokens that are kept is read until the cache is compacted. Requests
        with the same prompt do the same.
        """
        chances = self.chances(min(requests, len(self.tokens)))
        spare = sum(width * chance for width, chance in chances.items()) - self.committed
        context = round(self.context + self._holes(spare))
        seconds = sum(chance * costs(width, requests, context) for width, chance in chances.items())
        return requests * self.committed / (seconds + requests * self.rest)

    def chances(self, requests: int) -> dict[int, float]:
        """How often the widest of so many passes has so many rows."""
        total, below = self.widths.total(), 0.0
        found: dict[int, float] = {}
        for width in sorted(self.widths):
            upto = below + self.widths[width] / total
            found[width] = upto**requests - below**requests
            below = upto
        return found

    def _holes(self, spare: float) -> float:
        """Holes that a pass reads on average if each adds so many. Once reading them has cost what
        a compaction does, that is paid, which counts as much again.
        """
        debt = COMPACTION_BASE + COMPACTION_PER_ROW * self.context
        most = sqrt(2 * debt / spare) if spare > 0 else inf
        return spare * (self.passes / 2 if self.passes <= most else most)


@dataclass(frozen=True, slots=True)
class Together:
    """What the requests did in lockstep: their passes, and of each its prompt, the tokens of that,
    and those of the answer.
    """

    passes: Sequence[LockstepPass]
    texts: Sequence[str]
    prompts: Sequence[int]
    tokens: Sequence[Sequence[int]]

    @property
    def full(self) -> list[LockstepPass]:
        """Those in which every request decodes."""
        return [
            each
            for each in self.passes
            if all(each.rows) and all(map(int.__ge__, each.lengths, self.prompts))
        ]

    @property
    def throughput(self) -> float | None:
        full = self.full
        if len(full) < FEWEST_PASSES:
            return None
        tokens = sum(full[-1].lengths) - sum(full[0].lengths)
        return tokens / (full[-1].ended - full[0].ended)

    @property
    def rows(self) -> float:
        """Of an average pass in which all decode; 0 if there is none."""
        return mean([max(each.rows) for each in self.full] or [0])


class InLockstep(Loading):
    """A race's view of the models, but that the target is one sequence of a lockstep."""

    def __init__(self, models: LoadedModels, target: Engine, costs: Costs) -> None:
        super().__init__(models, lambda _: None)
        self._target = target
        self._target_costs = costs

    def engine(self, spec: ModelSpec) -> Engine:
        return self._target if spec == self._target.spec else super().engine(spec)

    def costs(self, engine: Engine, *, remeasure: bool = False) -> Costs:
        if engine.spec == self._target.spec:
            return self._target_costs
        return super().costs(engine, remeasure=remeasure)


def load(plan: Plan, models: LoadedModels, say: Say) -> list[LoadResult]:
    """Every column at each number of requests that was measured; who begins rotates.

    Raises DerbyError for columns that do not run here, and engines that compute no batches.
    """
    (target,) = plan.targets
    for column in plan.columns:
        if column.strategy.lane is not None:
            raise DerbyError(f"{column.label} runs elsewhere: what load costs is measured here.")
        if column.target(target) != target:
            raise DerbyError(
                f"{column.label} has a model of its own: name it for all with --model."
            )
    loading = Loading(models, say)
    loading.prepare(plan.columns, target)
    crowd = Crowd(plan, target, models, loading.engine(target))
    costs = models.measure_load(crowd.engine, say)
    found: dict[tuple[int, int], Side] = {}
    for turn, requests in enumerate(costs.requests):
        say(f"{requests} at once")
        for place in range(len(plan.columns)):
            index = (turn + place) % len(plan.columns)
            found[index, requests] = crowd.side(plan.columns[index], requests, costs)
    return [
        _result(column, requests, found[index, requests], found[0, requests], costs)
        for index, column in enumerate(plan.columns)
        for requests in costs.requests
    ]


@dataclass(frozen=True, slots=True)
class Side:
    """A column at so many requests."""

    alone: Alone
    together: Together

    @property
    def equal(self) -> int:
        """How many requests wrote what the column writes alone."""
        return sum(
            list(tokens) == self.alone.tokens[text]
            for text, tokens in zip(self.together.texts, self.together.tokens, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Crowd:
    """Runs a plan's columns on one model, alone and many at once."""

    plan: Plan
    target: ModelSpec
    models: LoadedModels
    engine: Engine

    def side(self, column: Column, requests: int, costs: LoadCosts) -> Side:
        """The column alone on each of the prompts, and so many requests in lockstep."""
        prompts = self.plan.prompts
        texts = [prompts[i % len(prompts)].text for i in range(requests)]
        share = costs.share(requests)
        alone = {text: self._run(column, text, self.engine, share) for text in dict.fromkeys(texts)}
        lockstep, found = Lockstep(self.engine, requests), dict[int, Run]()

        def work(number: int, member: Engine) -> None:
            found[number] = self._run(column, texts[number], member, share)

        lockstep.run([partial(work, number) for number in range(requests)])
        runs = [found[number] for number in range(requests)]
        together = Together(
            lockstep.passes,
            texts,
            [each.score.prompt_tokens for each in runs],
            [each.score.tokens for each in runs],
        )
        return Side(_alone([alone[text] for text in texts], alone), together)

    def _run(self, column: Column, text: str, member: Engine, share: Costs) -> "Run":
        loading = InLockstep(self.models, member, share)
        return Run(column, replace(self.plan.request, prompt=text), loading, self.target)


class Run:
    """A column's run to its end; `ended` says when each of its steps was, by the system's clock.
    Making it raises what ends it early.
    """

    def __init__(
        self, column: Column, request: Request, loading: Loading, target: ModelSpec
    ) -> None:
        self.score, self.steps, self.ended = Score(), list[Step](), list[float]()
        race = Race(request, (column,), target)
        for event in race.lane(0, loading, never).events:
            if event is not None:
                self.score.add(event)
            if isinstance(event, Step):
                self.steps.append(event)
                self.ended.append(perf_counter())

    @property
    def outside(self) -> float:
        """Seconds since the first step, its own excluded, in which no pass of the target ran."""
        passes = sum(step.seconds["forward"] for step in self.steps[1:])
        return self.ended[-1] - self.ended[0] - passes


def _alone(runs: Sequence[Run], by_text: Mapping[str, Run]) -> Alone:
    """What these runs tell together, each as often as it is there."""
    steps = [step for run in runs for step in run.steps[1:]]
    if not steps:
        raise DerbyError("Every answer is a single step long: choose other prompts.")
    passes, committed = min(len(run.steps) - 1 for run in runs), mean(len(s.tokens) for s in steps)
    return Alone(
        {text: run.score.tokens for text, run in by_text.items()},
        Counter(step.rows for step in steps),
        committed,
        sum(run.outside for run in runs) / len(steps),
        mean(run.score.prompt_tokens for run in runs) + committed * passes / 2,
        passes,
    )


def _result(column: Column, requests: int, side: Side, plain: Side, costs: LoadCosts) -> LoadResult:
    predicted, measured = side.alone.predicted(costs, requests), side.together.throughput
    base = plain.together.throughput
    return LoadResult(
        column=column.label,
        requests=requests,
        throughput=measured,
        predicted=predicted,
        ratio=predicted / measured if measured else None,
        speedup=measured / base if measured and base else None,
        predicted_speedup=predicted / plain.alone.predicted(costs, requests),
        tokens_per_forward=side.alone.committed,
        rows=side.together.rows,
        equal=f"{side.equal} of {requests}",
    )
