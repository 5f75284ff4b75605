"""Measures what forward passes cost, once for each model, engine, precision, device and machine."""

import logging
import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np

from backend.costs.learnt import ASSUMED, WIDTHS, LearntCosts
from backend.costs.pass_costs import CONTEXT, Costs, PassCosts, stated_costs
from backend.costs.store import keep, kept_costs
from backend.engines.base import Engine
from backend.engines.cache import Cache, NewRows
from backend.engines.registry import engine_named
from backend.types import PREFILL_CHUNK, Arrays, chain_parents

log = logging.getLogger(__name__)

#: Tokens before the rows that tell how costs grow with the context.
LONG_CONTEXT = 512

#: Contexts that differ by less tell the growth less well than no growth does.
SMALLEST_DIFFERENCE = 64

#: How often each width is measured at either context.
ROUNDS = 5

#: Rows after which a session is begun anew: those forgotten may lie in its cache and be read.
STALE = 64

Say = Callable[[str], None]


def costs_of(engine: Engine, say: Say, *, remeasure: bool = False) -> Costs:
    """The engine's costs: as it states them itself, for good; or else those to be corrected by its
    passes, from the cache folder, or measured now if they are not there or with `remeasure`.

    If measuring fails, `say` is told why, and costs are learnt beginning with what is usual. Raises
    DerbyError for an unknown engine.
    """
    pass_seconds = engine_named(engine.spec.engine).pass_seconds
    if pass_seconds is not None:
        return stated_costs(pass_seconds(engine.spec))
    kept = kept_costs(engine)
    if kept is not None and not (remeasure or kept.prior.assumed):
        return kept
    say(f"Measuring what passes of {engine.spec} cost...")
    try:
        measured = measure(engine)
    except Exception as error:
        log.warning("the costs of %s could not be measured", engine.spec, exc_info=True)
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        say(f"Measuring failed ({reason}): what passes of {engine.spec} cost is learnt in races.")
        return kept or LearntCosts(ASSUMED)
    if len(measured.widths) == 1:
        return measured  # no room for a wider pass, so there is nothing to choose
    costs = LearntCosts(measured)
    keep(engine, costs)
    return costs


@dataclass(frozen=True, slots=True)
class Points:
    """Where T(k) is measured: the widths, and so many tokens before them, near and far."""

    widths: tuple[int, ...]
    near: int
    far: int


def points_within(max_context: int, widths: Sequence[int] = WIDTHS) -> Points:
    """The points that a model of so many positions has room for: rows take half of it at most."""
    fitting = tuple(k for k in widths if k == 1 or 2 * k <= max_context)
    room = max(0, max_context - fitting[-1])
    near, far = min(CONTEXT, room), min(LONG_CONTEXT, room)
    return Points(fitting, near, far if far - near >= SMALLEST_DIFFERENCE else near)


def measure(engine: Engine, widths: Sequence[int] = WIDTHS, rounds: int = ROUNDS) -> PassCosts:
    """Time passes of each width, in another order each round; takes some ten seconds on a CPU.

    In a model with fewer positions, at fewer widths and contexts: see `points_within`.
    """
    return curve(engine, 1, widths, rounds)


def curve(engine: Engine, sequences: int, widths: Sequence[int], rounds: int) -> PassCosts:
    """What passes cost that serve so many sequences, all of which do the same."""
    points = points_within(engine.capabilities.max_context, widths)
    near, width_change = _measured(engine, sequences, points.widths, rounds, points.near)
    slope = (0.0, 0.0)
    if points.far > points.near and len(points.widths) > 1:
        far, _ = _measured(engine, sequences, points.widths, rounds, points.far)
        slope = _context_slope(points, near, far)
    return PassCosts(points.widths, near, width_change, slope)


def _context_slope(
    points: Points, near: Sequence[float], far: Sequence[float]
) -> tuple[float, float]:
    """A line through what the far context costs more than the near one: of a single width it would
    be mostly noise, which is taken to be proportional to the time.
    """
    more = np.subtract(far, near) / (points.far - points.near)
    row, each = np.polyfit(points.widths, more, 1, w=1 / np.asarray(near))
    return max(0.0, float(each)), max(0.0, float(row))


def _measured(
    engine: Engine, sequences: int, widths: Sequence[int], rounds: int, context: int
) -> tuple[tuple[float, ...], float]:
    """Seconds by width behind so many tokens, and what a change of width costs.

    Of each width, two passes in a row: the first tells what the change costs.
    """
    order = random.Random(0)
    first: dict[int, list[float]] = {k: [] for k in widths}
    steady: dict[int, list[float]] = {k: [] for k in widths}
    kept = prefilled(engine, context)
    with ExitStack() as open_ones:

        def begin() -> Cache:
            cache = engine.cache(sequences)
            open_ones.callback(cache.close)
            cache.load(context, kept)
            _timed(engine, cache, 1)
            return cache

        cache, stale = begin(), 0
        for _ in range(rounds):
            for k in order.sample(widths, len(widths)):
                if stale > STALE:
                    cache.close()
                    cache, stale = begin(), 0
                for times in (first, steady):
                    times[k].append(_timed(engine, cache, k))
                stale += 2 * k
    quickest = [_quartile(steady[k]) for k in widths]
    # A wider pass is never cheaper: where it seems so, the clock was disturbed.
    seconds = tuple(max(quickest[: i + 1]) for i in range(len(quickest)))
    width_change = median(_quartile(first[k]) - _quartile(steady[k]) for k in widths)
    return seconds, max(0.0, width_change)


def prefilled(engine: Engine, context: int) -> Arrays:
    """The cache of a text of so many tokens."""
    with closing(engine.open()) as session:
        while session.length < context:
            rows = min(PREFILL_CHUNK, context - session.length)
            session.forward([7] * rows, chain_parents(rows), ())
            session.keep(range(rows))
        return session.export(context)


def _quartile(times: Sequence[float]) -> float:
    """The lower quartile: whatever else the machine does can only lengthen a pass."""
    return sorted(times)[len(times) // 4]


def _timed(engine: Engine, cache: Cache, rows: int) -> float:
    """Seconds of a pass over `rows` tokens of each sequence whose logits are all wanted; it leaves
    nothing behind.
    """
    new, lengths = NewRows([7] * rows, chain_parents(rows), range(rows)), cache.lengths
    asked = [new] * len(lengths)
    engine.synchronize()
    start = perf_counter()
    cache.run(asked)
    engine.synchronize()
    seconds = perf_counter() - start
    for sequence, length in enumerate(lengths):
        cache.rewind(sequence, length)
    return seconds
