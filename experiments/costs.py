"""Do costs correct themselves? Speculation that begins with a wrong curve T(k), race by race,
against the same that began with a good one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from backend.bench.plan import with_baseline
from backend.costs.learnt import ASSUMED, LearntCosts
from backend.costs.pass_costs import PassCosts
from backend.engines.base import Engine
from backend.errors import DerbyError
from backend.events import CostsKnown
from backend.racing.loading import Loading
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.metrics import Score
from backend.strategies.column import parse_column
from backend.strategies.registry import BASELINE
from experiments.experiment import Experiment, Setup
from experiments.runs import race_on, ratios_of, rounds, run_together

#: Races in a row that begin with one curve: it is learnt from the earlier for the later.
RACES = 3

#: Rows at which the results quote a curve: what a round of four guesses takes.
QUOTED = 5


def _bent(curve: PassCosts, steepness: float, shift: float) -> PassCosts:
    """The curve with what rows add to a plain step, and the step itself, made wrong."""
    one = curve.one_row
    seconds = (one * (1 + shift) + steepness * (each - one) for each in curve.seconds)
    return replace(curve, seconds=tuple(seconds))


#: What the stored curve is taken to be, made of the good one.
CURVES: dict[str, Callable[[PassCosts], PassCosts]] = {
    "good": partial(_bent, steepness=1.0, shift=0.0),
    "twice as steep": partial(_bent, steepness=2.0, shift=0.0),
    "half as steep": partial(_bent, steepness=0.5, shift=0.0),
    "shifted up": partial(_bent, steepness=1.0, shift=0.5),
    "none": lambda _curve: ASSUMED,
}


@dataclass(frozen=True, slots=True)
class CostsResult:
    """A curve's race, of several in a row, over all prompts.

    speedup: the median over KV reuse in the same race. against_good: the median of its ratios to
    the speed-up that the good curve came to on the same prompt, with its 95 % interval. chosen: the
    same of what the passes that were chosen should take by one curve, whatever the machine did
    meanwhile. rows: of a pass on average. quoted: T(5) / T(1) at the end of the race.
    """

    curve: str
    race: int
    prompts: int
    speedup: float
    against_good: float
    interval: tuple[float, float] | None
    chosen: float
    rows: float
    quoted: float


@dataclass(frozen=True, slots=True)
class _Raced:
    """One race's columns, and at its end the costs, and what a call of the draft takes in plain
    steps.
    """

    base: Score
    score: Score
    costs: PassCosts
    draft: float

    @property
    def speedup(self) -> float:
        return self.score.speedup_over(self.base)

    def chosen(self, curve: PassCosts) -> float:
        """The speed-up that its passes should have come to by this curve."""
        each, row = curve.context_slope
        self.score.add(
            CostsKnown(
                0,
                list(curve.widths),
                list(curve.seconds),
                curve.width_change,
                self.draft * curve.one_row,
                [each, row],
            )
        )
        return self.score.predicted


def costs(setup: Setup) -> list[CostsResult]:
    """RACES races from each curve, beginning at each prompt; who begins rotates.

    Raises DerbyError where no costs are known that could be wrong.
    """
    columns = with_baseline([parse_column("speculative")])
    races = [race_on(prompt, columns, setup.request, setup.target) for prompt in setup.prompts]
    series = [[races[(i + j) % len(races)] for j in range(RACES)] for i in range(len(races))]
    loading = Loading(setup.models, setup.say)
    loading.prepare(columns, setup.target)
    engine = loading.engine(setup.target)
    run_together(races[0], setup.models)  # warms up, and corrects what is stored
    good = loading.costs(engine).now
    if not good.known:
        raise DerbyError(f"What passes of {setup.target} cost is not known: measure it with tune.")
    sides = [partial(_run, setup.models, engine, bend(good)) for bend in CURVES.values()]
    runs = rounds(sides, series, setup.say_prompt, warm_up=0)
    return [
        _result(name, number, [[side[number] for side in subject] for subject in runs], index)
        for index, name in enumerate(CURVES)
        for number in range(RACES)
    ]


def _run(
    models: LoadedModels, engine: Engine, curve: PassCosts, races: Sequence[Race]
) -> list[_Raced]:
    """The races, one after another, of which the first begins with this curve."""
    learnt, raced = LearntCosts(curve), list[_Raced]()
    with models.supposing(engine, learnt):
        for race in races:
            base, score = run_together(race, models)
            draft = score.draft_cost / learnt.now.one_row
            raced.append(_Raced(base, score, learnt.now, draft))
    return raced


def _result(
    name: str, number: int, subjects: Sequence[Sequence[_Raced]], index: int
) -> CostsResult:
    """Of one curve's race number; each subject holds one race a curve, the good one's first."""
    pairs = [(sides[0], sides[index]) for sides in subjects]
    ratios = ratios_of([ours.speedup / good.speedup for good, ours in pairs if good.speedup])
    own = [ours for _, ours in pairs]
    return CostsResult(
        name,
        number + 1,
        len(pairs),
        median(each.speedup for each in own),
        ratios.median,
        ratios.interval,
        median(ours.chosen(good.costs) / good.chosen(good.costs) for good, ours in pairs),
        median(each.score.mean_rows for each in own),
        median(each.costs.relative(QUOTED) for each in own),
    )


COSTS = Experiment(
    "costs", f"what wrong pass costs lose to good ones, in {BASELINE} and speculative races", costs
)
