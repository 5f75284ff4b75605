"""What forward passes cost: T(k), the seconds of one pass over k rows.

From it follows what speculation can gain: a step that verifies k - 1 guesses costs T(k) / T(1)
one-token passes, so it pays only while it commits more tokens than that.
"""

import json
import logging
import os
import platform
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from itertools import accumulate
from math import exp, log
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from backend.engines.engine import Engine
from backend.engines.registry import engine_named
from backend.engines.session import Session
from backend.errors import DerbyError
from backend.models.prepared import Say, cache_dir
from backend.types import PREFILL_CHUNK, chain_parents
from backend.untrusted import read_json

logger = logging.getLogger(__name__)

#: Tokens before the measured rows: what T(k) is quoted at.
CONTEXT = 128

#: Passes that the running scale remembers, and the logarithm by which one may differ and count in
#: full: something else may have held it up.
MEMORY, SURPRISE = 40, log(1.5)


@dataclass(frozen=True, slots=True)
class PassCosts:
    """Seconds of a forward pass over each of `widths` rows, ascending, the first 1, behind CONTEXT
    tokens. `width_change`: what a pass costs on top when the one before it had another number of
    rows. `context_slope`: seconds that each further token of context adds to a pass, and to each of
    its rows. `assumed`: nothing of it was measured.
    """

    widths: tuple[int, ...]
    seconds: tuple[float, ...]
    width_change: float = 0.0
    context_slope: tuple[float, float] = (0.0, 0.0)
    assumed: bool = False

    def __call__(self, rows: float, context: int = CONTEXT) -> float:
        """Seconds of a pass over so many rows behind so many tokens: between the measured widths,
        and beyond them, on straight lines. A slope that was measured too steep, on a busy machine,
        takes off half at most.
        """
        (per_pass, per_row), near, widths = self.context_slope, self.seconds[0], self.widths
        if len(widths) > 1:
            i = bisect_left(widths, rows, 1, len(widths) - 1)
            slope = (self.seconds[i] - self.seconds[i - 1]) / (widths[i] - widths[i - 1])
            near = self.seconds[i] - slope * (widths[i] - rows)
        return max(near / 2, near + (context - CONTEXT) * (per_pass + per_row * rows))

    @property
    def known(self) -> bool:
        """False of UNKNOWN_COSTS, and of what is but assumed."""
        return len(self.widths) > 1 and not self.assumed

    @property
    def one_row(self) -> float:
        """Seconds of a pass over one row: a plain decode step."""
        return self.seconds[0]

    def relative(self, rows: float) -> float:
        """T(rows) / T(1): how many times as long as a one-token pass such a pass takes."""
        return self(rows) / self.one_row

    @property
    def now(self) -> "PassCosts":
        """The same costs: these never change."""
        return self

    def observe(self, rows: int, context: int, seconds: float) -> None:
        """Learn nothing."""


class RunningCosts:
    """A curve times one scale: how fast the machine is at the moment. Mutable; one for each loaded
    engine, to which all its columns report their passes. `now`: what passes cost at the moment.
    """

    def __init__(self, curve: PassCosts) -> None:
        self.curve = self.now = curve
        self._scale = 0.0  # a logarithm
        self._seen = 0

    def observe(self, rows: int, context: int, seconds: float) -> None:
        """Learn what a pass took, over so many rows behind so many tokens."""
        if seconds <= 0:
            return  # a clock too coarse to tell
        self._seen = min(self._seen + 1, MEMORY)
        surprise = log(seconds / self.now(rows, context))
        if self._seen > 1:
            surprise = max(-SURPRISE, min(surprise, SURPRISE))
        self._scale += surprise / self._seen
        curve, ratio = self.curve, exp(self._scale)
        self.now = replace(
            curve,
            seconds=tuple(ratio * seconds for seconds in curve.seconds),
            width_change=ratio * curve.width_change,
            context_slope=(ratio * curve.context_slope[0], ratio * curve.context_slope[1]),
        )


Costs = PassCosts | RunningCosts

#: The costs of an engine that stands in for a model: every pass costs the same.
UNKNOWN_COSTS = PassCosts((1,), (1e-3,))

#: Raise it whenever the measurement changes.
RECIPE = "costs v8"

#: The widths at which T(k) is measured: where CPUs and GPUs bend, and as far as lookahead goes.
WIDTHS = (1, 2, 4, 8, 16, 32)

#: Tokens of the longer context, from which follows how costs grow.
LONG_CONTEXT = 512

#: How often each width is measured at either context, and seconds after which no other round is
#: begun: of a model so large that one takes longer, the growth with the context is not measured.
ROUNDS, SECONDS = 5, 3.0

#: What passes take where nothing was measured: seconds that the first pass will correct, and for
#: each further row a twentieth of a one-token pass, which lies between what CPUs and GPUs show.
ASSUMED = PassCosts(WIDTHS, tuple(0.02 * (1 + (k - 1) / 20) for k in WIDTHS), assumed=True)


def known_costs(engine: Engine) -> Costs:
    """The engine's costs without measuring: as they were stored, or as they usually are; of one
    that stands in for a model, UNKNOWN_COSTS. Raises DerbyError for an unknown engine.
    """
    if engine_named(engine.spec.engine).demo:
        return UNKNOWN_COSTS
    try:
        return RunningCosts(read_json(PassCosts, _path(engine).read_bytes()))
    except (OSError, DerbyError):  # none, or not as they were written
        return RunningCosts(ASSUMED)


def measured_costs(engine: Engine, known: Costs, say: Say) -> Costs:
    """The same, but measured now. If measuring fails, `say` gets the reason, and the `known` ones
    stay, as do those of an engine that stands in for a model.
    """
    if not isinstance(known, RunningCosts):
        return known
    say(f"Measuring passes of {engine.spec}...")
    try:
        measured = measure(engine)
    except Exception as error:
        logger.warning("%s not measured", engine.spec, exc_info=True)
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        say(f"Measuring {engine.spec} failed ({reason}).")
        return known
    path = _path(engine)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(measured)), encoding="utf-8")
    except OSError as error:  # measured again next time, as what was written by half
        logger.warning("costs not stored: %s", error)
    return RunningCosts(measured)


def _path(engine: Engine) -> Path:
    machine = f"{platform.node()} {platform.machine()} {platform.processor()} {os.cpu_count()}"
    key = f"{RECIPE} {engine.fingerprint} {engine.spec} {machine}"
    return cache_dir() / "costs" / f"{sha256(key.encode()).hexdigest()[:24]}.json"


def measure(engine: Engine) -> PassCosts:
    """Time passes of each width behind few and behind many tokens, a few seconds on a CPU. A model
    with fewer positions is measured at fewer widths, and behind few tokens alone.
    """
    widths = [k for k in WIDTHS if k == 1 or 2 * k <= engine.max_context]
    room, began = engine.max_context - widths[-1], perf_counter()
    seconds, change = _measured(engine, widths, min(CONTEXT, room))
    per_pass = per_row = 0.0
    if room >= LONG_CONTEXT and perf_counter() - began < 2 * SECONDS:
        # A line through what the longer context costs more: of a single width it would be mostly
        # noise, which is taken to be proportional to the time.
        longer, _ = _measured(engine, widths, LONG_CONTEXT)
        more = np.subtract(longer, seconds) / (LONG_CONTEXT - CONTEXT)
        per_row, per_pass = np.polyfit(widths, more, 1, w=1 / np.asarray(seconds))
    slope = (max(0.0, float(per_pass)), max(0.0, float(per_row)))
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
            for k, changed, unchanged in zip(widths, first, steady, strict=True):
                changed.append(_timed(engine, session, k))
                unchanged.append(_timed(engine, session, k))
    quickest = list(map(_quartile, steady))
    changes = list(map(float.__sub__, map(_quartile, first[1:]), quickest[1:]))
    # A wider pass is never cheaper: where it seems so, the clock was disturbed.
    return tuple(accumulate(quickest, max)), max(0.0, median(changes or [0.0]))


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
