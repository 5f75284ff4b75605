"""Does speculation pay under load? Many requests at once, in lockstep, and what was predicted."""

from collections import Counter
from collections.abc import Sequence
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
from backend.models.files import Say
from backend.racing.loading import Loading
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.metrics import Score
from backend.strategies.column import Column
from backend.types import ModelSpec, Request

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


class InLockstep(Loading):
    """A race's view of the models, but that the target is one sequence of a lockstep."""

    def __init__(self, models: LoadedModels, member: Engine, share: Costs) -> None:
        super().__init__(models, lambda _: None)
        self.target = member.spec
        self._member = member
        self._share = share

    def engine(self, spec: ModelSpec) -> Engine:
        return self._member if spec == self.target else super().engine(spec)

    def costs(self, engine: Engine) -> Costs:
        return self._share if engine.spec == self.target else super().costs(engine)


class Run:
    """A column's answer to a request; `ended` says when each of its steps was, by the system's
    clock. Making it runs it to its end, and raises what ends it early.
    """

    def __init__(self, column: Column, request: Request, loading: InLockstep) -> None:
        self.prompt = request.prompt
        self.score, self.steps, self.ended = Score(), list[Step](), list[float]()
        race = Race(request, (column,), loading.target)
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


class Alone:
    """What runs of a column on its own tell, each of which counts as often as it is listed: of
    their steps behind the first one what a pass computes (`widths`) and yields (`committed`), the
    seconds from one to the next (`rest`), the tokens that it reads (`context`), and how many
    `passes` there are until the first text ends.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        """Raises DerbyError if no answer has such steps."""
        steps = [step for run in runs for step in run.steps[1:]]
        if not steps:
            raise DerbyError("Every answer was only one step long: choose other prompts.")
        self.tokens = {run.prompt: run.score.tokens for run in runs}
        self.widths = Counter(step.rows for step in steps)
        self.committed = mean(len(step.tokens) for step in steps)
        self.rest = sum(run.outside for run in runs) / len(steps)
        self.passes = min(len(run.steps) - 1 for run in runs)
        prompt_tokens = mean(run.score.prompt_tokens for run in runs)
        self.context = prompt_tokens + self.committed * self.passes / 2

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
    """What requests did in lockstep, and the passes that they shared."""

    runs: Sequence[Run]
    passes: Sequence[LockstepPass]

    @property
    def full(self) -> list[LockstepPass]:
        """Those in which every request decodes."""
        prompts = [run.score.prompt_tokens for run in self.runs]
        return [
            each
            for each in self.passes
            if all(each.rows) and all(map(int.__ge__, each.lengths, prompts))
        ]

    @property
    def throughput(self) -> float | None:
        """Tokens a second of all of them, while all decode; None if that was too short."""
        full = self.full
        if len(full) < FEWEST_PASSES:
            return None
        tokens = sum(full[-1].lengths) - sum(full[0].lengths)
        return tokens / (full[-1].ended - full[0].ended)

    @property
    def rows(self) -> float:
        """Of an average pass in which all decode; 0 if there is none."""
        return mean([max(each.rows) for each in self.full] or [0])


def load(plan: Plan, models: LoadedModels, say: Say) -> list[LoadResult]:
    """Every column at each number of requests that was measured; who begins rotates.

    Raises DerbyError for columns that do not run here, and engines that compute no batches.
    """
    (target,) = plan.targets
    for column in plan.columns:
        if column.strategy.lane is not None:
            raise DerbyError(
                f"{column.label} runs on another machine, and load is measured on "
                f"this one: choose another column."
            )
        if column.target(target) != target:
            raise DerbyError(f"{column.label} names its own model: use --model for all columns.")
    loading = Loading(models, say)
    loading.prepare(plan.columns, target)
    engine = loading.engine(target)
    costs = models.measure_load(engine, say)
    found: dict[tuple[int, int], tuple[Alone, Together]] = {}
    for turn, requests in enumerate(costs.requests):
        say(f"{requests} at once")
        for place in range(len(plan.columns)):
            index = (turn + place) % len(plan.columns)
            share = costs.share(requests)
            found[index, requests] = _measured(plan, index, requests, engine, models, share)
    return [
        _result(column.label, requests, found[index, requests], found[0, requests], costs)
        for index, column in enumerate(plan.columns)
        for requests in costs.requests
    ]


def _measured(
    plan: Plan, index: int, requests: int, engine: Engine, models: LoadedModels, share: Costs
) -> tuple[Alone, Together]:
    """A column alone on each of the prompts, and so many requests of it in lockstep."""
    texts = [plan.prompts[i % len(plan.prompts)].text for i in range(requests)]

    def run(text: str, member: Engine) -> Run:
        request = replace(plan.request, prompt=text)
        return Run(plan.columns[index], request, InLockstep(models, member, share))

    alone = {text: run(text, engine) for text in dict.fromkeys(texts)}
    lockstep, found = Lockstep(engine, requests), dict[int, Run]()

    def work(number: int, member: Engine) -> None:
        found[number] = run(texts[number], member)

    lockstep.run([partial(work, number) for number in range(requests)])
    together = Together([found[number] for number in range(requests)], lockstep.passes)
    return Alone([alone[text] for text in texts]), together


def _result(
    column: str,
    requests: int,
    found: tuple[Alone, Together],
    plain: tuple[Alone, Together],
    costs: LoadCosts,
) -> LoadResult:
    """A column's figures, compared with those of the `plain` one at as many requests."""
    alone, together = found
    predicted, measured = alone.predicted(costs, requests), together.throughput
    base = plain[1].throughput
    equal = sum(run.score.tokens == alone.tokens[run.prompt] for run in together.runs)
    return LoadResult(
        column=column,
        requests=requests,
        throughput=measured,
        predicted=predicted,
        ratio=predicted / measured if measured else None,
        speedup=measured / base if measured and base else None,
        predicted_speedup=predicted / plain[0].predicted(costs, requests),
        tokens_per_forward=alone.committed,
        rows=together.rows,
        equal=f"{equal} of {requests}",
    )
