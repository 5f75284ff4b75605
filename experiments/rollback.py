"""What a rejected draft costs on a cache: a pass of which some rows are kept and the pass behind
it, against the same two passes where all rows are kept.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from backend.costs.measure import prefilled
from backend.costs.pass_costs import CONTEXT
from backend.engines.base import Engine, Session
from backend.racing.loading import Loading
from backend.types import chain_parents
from experiments.experiment import Experiment, Setup

#: Rows of the pass, and how many of them are kept.
PASSES = ((2, 1), (4, 1), (4, 3), (8, 1), (8, 4))

#: Pairs of passes that a round times in a row.
PAIRS = 8


@dataclass(frozen=True, slots=True)
class RollbackResult:
    """Of passes over `rows` rows behind CONTEXT tokens, of which `kept` ones are kept, each with
    the next pass over one row: milliseconds of both where all rows are kept, and where so many are;
    the median over the rounds, and of the rounds' own ratios.
    """

    rewinds: str
    rows: int
    kept: int
    whole: float
    rejected: float
    ratio: float


def rollback(setup: Setup) -> list[RollbackResult]:
    """Both sides of each of PASSES in every round, one right behind the other, on one cache."""
    engine = Loading(setup.models, setup.say).engine(setup.target)
    context = prefilled(engine, CONTEXT)
    times: dict[tuple[int, int], list[tuple[float, float]]] = {shape: [] for shape in PASSES}
    for number in range(-1, setup.rounds):  # the first round warms up
        if number >= 0:
            setup.say_round(number)
        for rows, kept in PASSES:
            sides = []
            for keeping in (rows, kept):
                with closing(engine.open()) as session:
                    session.load(CONTEXT, context)
                    sides.append(_pair(engine, session, rows, keeping))
            if number >= 0:
                times[rows, kept].append((sides[0], sides[1]))
    return [_result(engine, rows, kept, found) for (rows, kept), found in times.items()]


def _pair(engine: Engine, session: Session, rows: int, kept: int) -> float:
    """Seconds of a pass of which so many rows are kept and of the next one, the median of PAIRS."""
    found: list[float] = []
    for _ in range(PAIRS):
        engine.synchronize()
        start = perf_counter()
        for width, keeping in ((rows, kept), (1, 1)):
            session.forward([7] * width, chain_parents(width), range(width))
            session.keep(range(keeping))
        engine.synchronize()
        found.append(perf_counter() - start)
    return median(found)


def _result(
    engine: Engine, rows: int, kept: int, found: Sequence[tuple[float, float]]
) -> RollbackResult:
    whole, rejected = (1e3 * median(side) for side in zip(*found, strict=True))
    ratio = median(rejected / whole for whole, rejected in found)
    return RollbackResult(engine.capabilities.rewinds, rows, kept, whole, rejected, ratio)


ROLLBACK = Experiment("rollback", "what a rejected draft costs on the target's cache", rollback)
