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
from backend.engines.base import Engine, Session
from backend.engines.registry import engine_named
from backend.types import PREFILL_CHUNK, Arrays, chain_parents

log = logging.getLogger(__name__)

#: Tokens before the rows that tell how costs grow with the context.
LONG_CONTEXT = 512

#: Contexts that differ by less tell the growth less well than no growth does.
SMALLEST_DIFFERENCE = 64

#: How often each width is measured at either context, and seconds after which, at one context, no
#: round is begun but the second.
ROUNDS = 5
ROUND_SECONDS = 5.0

#: Seconds between two words on how far measuring has come.
LOOK = 1.0

#: Seconds that a pass over PREFILL_CHUNK rows takes in a model that is too large to be measured at
#: all points: the built-in model's take 0.1 to 0.2, those of one eight times its size 0.8.
LARGE = 0.5

#: The widths at which a large model is measured, each once, and seconds after which none is begun
#: but the second: a single one is no curve.
FEW_WIDTHS = (1, 2, 4, 8, 16)
FEW_SECONDS = 4.0

#: Rows after which a session is begun anew: those forgotten may lie in its cache and be read.
STALE = 64

Say = Callable[[str], None]

#: Hears which share of a measurement is done.
Tell = Callable[[float], None]


def _nobody(_share: float) -> None: ...


def known_costs(engine: Engine) -> Costs:
    """The engine's costs without measuring: as it states them itself, for good; or else those to be
    corrected by its passes, from the cache folder, or beginning with what is usual. Raises
    DerbyError for an unknown engine.
    """
    pass_seconds = engine_named(engine.spec.engine).pass_seconds
    if pass_seconds is not None:
        return stated_costs(pass_seconds(engine.spec))
    return kept_costs(engine) or LearntCosts(ASSUMED)


def costs_of(engine: Engine, say: Say, *, remeasure: bool = False) -> Costs:
    """The same, but measured now where nothing was before, or with `remeasure`.

    If measuring fails, `say` is told why, and what is known stays. Raises DerbyError for an unknown
    engine.
    """
    known = known_costs(engine)
    if not isinstance(known, LearntCosts) or not (remeasure or known.prior.assumed):
        return known
    sentence = f"Measuring the times of passes of {engine.spec}..."
    say(sentence)
    try:
        measured = measure(engine, tell=_telling(sentence, say))
    except Exception as error:
        log.warning("the costs of %s could not be measured", engine.spec, exc_info=True)
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        say(
            f"Measuring failed ({reason}): the times of passes of {engine.spec} are learnt "
            f"during races."
        )
        return known
    if len(measured.widths) == 1:
        return measured  # no room for a wider pass, so there is nothing to choose
    costs = LearntCosts(measured)
    keep(engine, costs)
    return costs


def _telling(sentence: str, say: Say) -> Tell:
    """Adds to a sentence how far it has come, and how long the rest will take, once a LOOK."""
    began = told = perf_counter()

    def tell(share: float) -> None:
        nonlocal told
        now = perf_counter()
        if now - told >= LOOK and share < 1:
            told = now
            say(f"{sentence} {share:.0%}, about {(now - began) * (1 - share) / share:.0f} s left")

    return tell


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


def measure(
    engine: Engine, widths: Sequence[int] = WIDTHS, rounds: int = ROUNDS, tell: Tell = _nobody
) -> PassCosts:
    """Time passes of each width, in another order each round, and `tell` after each how far it has
    come; takes some ten seconds on a CPU.

    In a model with fewer positions, at fewer widths and contexts: see `points_within`. In a large
    one at FEW_WIDTHS, which races correct.
    """
    chunk = min(PREFILL_CHUNK, engine.capabilities.max_context)
    with closing(engine.open()) as session:
        if _timed(engine, session, chunk) <= LARGE:
            return curve(engine, widths, rounds, tell)
        return _quick_curve(engine, session)


def _quick_curve(engine: Engine, session: Session) -> PassCosts:
    """What passes cost behind an empty cache, as far as a few seconds tell: the context adds little
    to what the weights of a large model take, and a change of width too.
    """
    widths = points_within(engine.capabilities.max_context, FEW_WIDTHS).widths
    began, seconds = perf_counter(), list[float]()
    for k in widths:
        if len(seconds) > 1 and perf_counter() - began > FEW_SECONDS:
            break
        # The first pass of a width may be slow, and a wider pass is never cheaper.
        quickest = min(_timed(engine, session, k) for _ in range(2))
        seconds.append(max([quickest, *seconds]))
    return PassCosts(widths[: len(seconds)], tuple(seconds))


def curve(engine: Engine, widths: Sequence[int], rounds: int, tell: Tell = _nobody) -> PassCosts:
    """What passes cost, by their widths and by the tokens before them."""
    points = points_within(engine.capabilities.max_context, widths)
    twice = points.far > points.near and len(points.widths) > 1

    def measured(context: int, begun: float = 0) -> tuple[tuple[float, ...], float]:
        def told(share: float) -> None:
            tell((begun + share) / (1 + twice))

        return _measured(engine, points.widths, rounds, context, told)

    near, width_change = measured(points.near)
    slope = (0.0, 0.0)
    if twice:
        far, _ = measured(points.far, 1)
        slope = _context_slope(points, near, far)
    return PassCosts(points.widths, near, width_change, slope)


def one_row_seconds(engine: Engine) -> float:
    """What a pass over one row takes, by a few of them."""
    with closing(engine.open()) as session:
        return _quartile([_timed(engine, session, 1) for _ in range(ROUNDS)])


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
    engine: Engine,
    widths: Sequence[int],
    rounds: int,
    context: int,
    tell: Tell = _nobody,
) -> tuple[tuple[float, ...], float]:
    """Seconds by width behind so many tokens, and what a change of width costs; after ROUND_SECONDS
    by as many rounds as there were, of which there are two at least.

    Of each width, two passes in a row: the first tells what the change costs.
    """
    order = random.Random(0)
    first: dict[int, list[float]] = {k: [] for k in widths}
    steady: dict[int, list[float]] = {k: [] for k in widths}
    kept = prefilled(engine, context)
    with ExitStack() as open_ones:

        def begin() -> Session:
            session = engine.open()
            open_ones.callback(session.close)
            session.load([7] * context, kept)
            _timed(engine, session, 1)
            return session

        session, stale = begin(), 0
        began = perf_counter()
        for done in range(rounds):
            if done > 1 and perf_counter() - began > ROUND_SECONDS:
                break
            for k in order.sample(widths, len(widths)):
                if stale > STALE:
                    session.close()
                    session, stale = begin(), 0
                for times in (first, steady):
                    times[k].append(_timed(engine, session, k))
                stale += 2 * k
            tell((done + 1) / rounds)
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


def _timed(engine: Engine, session: Session, rows: int) -> float:
    """Seconds of a pass with the logits of so many tokens; it leaves nothing behind."""
    tokens, parents, length = [7] * rows, chain_parents(rows), session.length
    engine.synchronize()
    start = perf_counter()
    session.forward(tokens, parents, range(rows))
    engine.synchronize()
    seconds = perf_counter() - start
    session.truncate(length)
    return seconds
