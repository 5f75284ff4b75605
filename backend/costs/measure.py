"""Measures what forward passes cost, once for each model, engine, precision, device and machine,
and stores it.
"""

import json
import logging
import os
import platform
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from backend.costs.pass_costs import CONTEXT, Costs, PassCosts, RunningCosts, stated_costs
from backend.engines.base import Engine
from backend.engines.registry import engine_named
from backend.engines.session import Session
from backend.errors import DerbyError
from backend.models.prepared import cache_dir
from backend.types import PREFILL_CHUNK, chain_parents
from backend.untrusted import read_as

log = logging.getLogger(__name__)

#: Raise it whenever the measurement changes.
RECIPE = "costs v7"

#: The widths at which T(k) is measured: where CPUs and GPUs bend, and as far as lookahead goes.
WIDTHS = (1, 2, 4, 8, 16, 32)

#: Tokens before the rows that tell how costs grow with the context; contexts that differ by less
#: than the other tell the growth less well than no growth does.
LONG_CONTEXT, SMALLEST_DIFFERENCE = 512, 64

#: How often each width is measured at either context, and seconds after which no other round is
#: begun: of a model so large that one takes longer, the growth with the context is not measured.
ROUNDS, SECONDS = 5, 3.0

#: What passes take where nothing was measured: seconds that the first pass will correct, and for
#: each further row a twentieth of a one-token pass, which lies between what CPUs and GPUs show.
ASSUMED = PassCosts(WIDTHS, tuple(0.02 * (1 + (k - 1) / 20) for k in WIDTHS), assumed=True)

Say = Callable[[str], None]


def known_costs(engine: Engine) -> Costs:
    """The engine's costs without measuring: as it states them itself, as they were stored, or as
    they usually are. Raises DerbyError for an unknown engine.
    """
    pass_seconds = engine_named(engine.spec.engine).pass_seconds
    if pass_seconds is not None:
        return stated_costs(pass_seconds(engine.spec))
    try:
        stored = json.loads(_path(engine).read_text(encoding="utf-8"))
        return RunningCosts(read_as(PassCosts, stored))
    except (OSError, ValueError, DerbyError):  # none, or not as they were written
        return RunningCosts(ASSUMED)


def costs_of(engine: Engine, say: Say, *, remeasure: bool = False) -> Costs:
    """The same, but measured now where nothing was before, or with `remeasure`. If measuring fails,
    `say` is told why, and what is known stays.
    """
    known = known_costs(engine)
    if not isinstance(known, RunningCosts) or not (remeasure or known.now.assumed):
        return known
    say(f"Measuring passes of {engine.spec}...")
    try:
        measured = measure(engine)
    except Exception as error:
        log.warning("%s not measured", engine.spec, exc_info=True)
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        say(f"Measuring {engine.spec} failed ({reason}).")
        return known
    path = _path(engine)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(measured)), encoding="utf-8")
        partial.replace(path)
    except OSError as error:  # measured again next time
        log.warning("costs not stored: %s", error)
    return RunningCosts(measured)


def _path(engine: Engine) -> Path:
    machine = f"{platform.node()} {platform.machine()} {platform.processor()} {os.cpu_count()}"
    key = f"{RECIPE} {engine.fingerprint} {engine.spec} {machine}"
    return cache_dir() / "costs" / f"{sha256(key.encode()).hexdigest()[:24]}.json"


def measure(engine: Engine) -> PassCosts:
    """Time passes of each width behind few and behind many tokens, a few seconds on a CPU. A model
    with fewer positions is measured at fewer widths.
    """
    widths = [k for k in WIDTHS if k == 1 or 2 * k <= engine.max_context]
    room, began = engine.max_context - widths[-1], perf_counter()
    near, far = min(CONTEXT, room), min(LONG_CONTEXT, room)
    seconds, change = _measured(engine, widths, near)
    each = row = 0.0
    if far - near >= SMALLEST_DIFFERENCE and perf_counter() - began < 2 * SECONDS:
        # A line through what the far context costs more than the near one: of a single width it
        # would be mostly noise, which is taken to be proportional to the time.
        more = np.subtract(_measured(engine, widths, far)[0], seconds) / (far - near)
        row, each = np.polyfit(widths, more, 1, w=1 / np.asarray(seconds))
    slope = (max(0.0, float(each)), max(0.0, float(row)))
    return PassCosts(tuple(widths), seconds, change, slope)


def one_row_seconds(engine: Engine) -> float:
    """What a pass over one row takes, by a few of them."""
    with closing(engine.open()) as session:
        return _quartile([_timed(engine, session, 1) for _ in range(ROUNDS)])


def _measured(
    engine: Engine, widths: Sequence[int], context: int
) -> tuple[tuple[float, ...], float]:
    """Seconds by width behind so many tokens, and what a change of width costs: of each width, two
    passes in a row, of which the first shows that. Each round has a session of its own, because
    rows that were forgotten may lie in its cache and be read.
    """
    first: list[list[float]] = [[] for _ in widths]
    steady: list[list[float]] = [[] for _ in widths]
    began = perf_counter()
    for done in range(ROUNDS):
        if done and perf_counter() - began > SECONDS:
            break
        with closing(engine.open()) as session:
            while session.length < context:
                rows = min(PREFILL_CHUNK, context - session.length)
                session.forward([7] * rows, chain_parents(rows), ())
                session.keep(range(rows))
            for index, k in enumerate(widths):
                first[index].append(_timed(engine, session, k))
                steady[index].append(_timed(engine, session, k))
    quickest = [_quartile(times) for times in steady]
    # A wider pass is never cheaper: where it seems so, the clock was disturbed.
    seconds = tuple(max(quickest[: i + 1]) for i in range(len(quickest)))
    changes = [_quartile(times) for times in first[1:]]
    change = median(map(float.__sub__, changes, quickest[1:])) if changes else 0.0
    return seconds, max(0.0, change)


def _quartile(times: Sequence[float]) -> float:
    """The lower quartile: whatever else the machine does can only lengthen a pass."""
    return sorted(times)[len(times) // 4]


def _timed(engine: Engine, session: Session, rows: int) -> float:
    """Seconds of a pass over so many tokens whose logits are all wanted; it leaves nothing."""
    length = session.length
    engine.synchronize()
    start = perf_counter()
    session.forward([7] * rows, chain_parents(rows), range(rows))
    engine.synchronize()
    seconds = perf_counter() - start
    session.truncate(length)
    return seconds
