"""What forward passes cost: T(k), the time of one pass over k rows, measured once and kept.

From it follows what speculation can gain: a step that verifies k - 1 guesses costs T(k) / T(1)
plain steps, so it pays only while it commits more tokens than that.
"""

import json
import logging
import os
import platform
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from backend.engines.base import Engine, Session
from backend.models.prepared import cache_dir
from backend.types import PREFILL_CHUNK, ModelSpec, chain_parents

log = logging.getLogger(__name__)

#: Raise it whenever the measurement changes.
RECIPE = "costs v4"

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48)

#: Tokens before the measured rows: what T(k) is quoted at, and what its growth is told by.
CONTEXT = 128
LONG_CONTEXT = 512

#: How often each width is measured at either.
ROUNDS = 5

#: Rows after which a session is begun anew: those forgotten may lie in its cache and be read.
STALE = 64

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PassCosts:
    """Seconds of a forward pass over each of `widths` rows, ascending, the first 1.

    They are those behind CONTEXT tokens. `context_slope`: seconds that each token more adds to any
    pass, and to it for each of its rows. `width_change` is what a pass costs on top when the one
    before it had another number of rows.
    """

    widths: tuple[int, ...]
    seconds: tuple[float, ...]
    width_change: float = 0.0
    context_slope: tuple[float, float] = (0.0, 0.0)

    def __call__(self, rows: int, context: int = CONTEXT) -> float:
        """Seconds of a pass over so many rows behind so many tokens: between the measured widths,
        and beyond them, on straight lines.
        """
        each, row = self.context_slope
        return self._near(rows) + (context - CONTEXT) * (each + row * rows)

    def _near(self, rows: int) -> float:
        last = len(self.widths) - 2
        if last < 0:
            return self.one_row
        index = next((i for i in range(last) if rows <= self.widths[i + 1]), last)
        (a, b), (low, high) = self.widths[index : index + 2], self.seconds[index : index + 2]
        return low + (high - low) * (rows - a) / (b - a)

    @property
    def known(self) -> bool:
        """False of UNKNOWN_COSTS: nobody measured it."""
        return len(self.widths) > 1

    @property
    def one_row(self) -> float:
        """Seconds of a pass over one row: a plain decode step."""
        return self.seconds[0]

    def relative(self, rows: int) -> float:
        """T(rows) / T(1): how many plain steps such a pass costs."""
        return self(rows) / self.one_row


#: What an engine costs whose passes are not worth measuring: nothing tells one from another.
UNKNOWN_COSTS = PassCosts((1,), (1e-3,))

#: What the model "fake-priced" is said to cost: so much a row that no guess pays.
STEEP = PassCosts(WIDTHS, tuple(5e-4 * (1 + rows) for rows in WIDTHS), 1e-4)


def costs_of(engine: Engine, say: Say, *, again: bool = False) -> PassCosts:
    """The engine's costs, from the cache folder or, once and with `again`, measured now."""
    if engine.spec.engine == "fake":
        return STEEP if engine.spec.name == "fake-priced" else UNKNOWN_COSTS
    path = _path(engine.fingerprint, engine.spec)
    known = None if again else _read(path)
    if known is None:
        say(f"Measuring what passes of {engine.spec} cost...")
        known = measure(engine)
        _write(path, known)
    return known


def measure(engine: Engine, widths: Sequence[int] = WIDTHS, rounds: int = ROUNDS) -> PassCosts:
    """Time passes of each width, in another order each round; takes some ten seconds on a CPU."""
    near, change = _measured(engine, widths, rounds, CONTEXT)
    far, _ = _measured(engine, widths, rounds, LONG_CONTEXT)
    return PassCosts(tuple(widths), near, change, _growth(widths, near, far))


def _growth(
    widths: Sequence[int], near: Sequence[float], far: Sequence[float]
) -> tuple[float, float]:
    """A line through what LONG_CONTEXT costs more than CONTEXT: of a single width it would be
    mostly noise, which is taken to be proportional to the time.
    """
    more = np.subtract(far, near) / (LONG_CONTEXT - CONTEXT)
    row, each = np.polyfit(widths, more, 1, w=1 / np.asarray(near))
    return max(0.0, float(each)), max(0.0, float(row))


def _measured(
    engine: Engine, widths: Sequence[int], rounds: int, context: int
) -> tuple[tuple[float, ...], float]:
    """Seconds by width behind so many tokens, and what a change of width costs.

    Of each width, two passes in a row: the first tells what the change costs.
    """
    order = random.Random(0)
    first: dict[int, list[float]] = {k: [] for k in widths}
    steady: dict[int, list[float]] = {k: [] for k in widths}
    session = _begun(engine, context)
    kept, stale = session.export(context), 0
    for _ in range(rounds):
        for k in order.sample(widths, len(widths)):
            if stale > STALE:
                session.close()
                session, stale = engine.open(), 0
                session.load(context, kept)
                _timed(engine, session, 1)
                session.truncate(context)
            for found in (first, steady):
                found[k].append(_timed(engine, session, k))
                session.truncate(context)
            stale += 2 * k
    session.close()
    usual = [_quartile(steady[k]) for k in widths]
    # A wider pass is never cheaper: where it seems so, the clock was disturbed.
    seconds = tuple(max(usual[: i + 1]) for i in range(len(usual)))
    change = median(_quartile(first[k]) - _quartile(steady[k]) for k in widths)
    return seconds, max(0.0, change)


def _begun(engine: Engine, context: int) -> Session:
    """A session that holds so many tokens."""
    session = engine.open()
    while session.length < context:
        rows = min(PREFILL_CHUNK, context - session.length)
        session.forward([7] * rows, chain_parents(rows), ())
        session.keep(range(rows))
    return session


def _quartile(times: Sequence[float]) -> float:
    """The lower quartile: whatever else the machine does can only lengthen a pass."""
    return sorted(times)[len(times) // 4]


def _timed(engine: Engine, session: Session, rows: int) -> float:
    """Seconds of a pass over `rows` tokens whose logits are all wanted."""
    engine.synchronize()
    start = perf_counter()
    session.forward([7] * rows, chain_parents(rows), range(rows))
    engine.synchronize()
    return perf_counter() - start


def _path(fingerprint: str, spec: ModelSpec) -> Path:
    """One file for each model, engine, precision, device and machine."""
    machine = f"{platform.node()} {platform.machine()} {platform.processor()} {os.cpu_count()}"
    key = f"{RECIPE} {fingerprint} {spec} {machine}"
    return cache_dir() / "costs" / f"{sha256(key.encode()).hexdigest()[:24]}.json"


def _read(path: Path) -> PassCosts | None:
    try:
        found = json.loads(path.read_text())
        widths, seconds = tuple(found["widths"]), tuple(found["seconds"])
        each, row = found["context_slope"]
        whole = len(widths) == len(seconds) > 1
        return PassCosts(widths, seconds, found["width_change"], (each, row)) if whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, costs: PassCosts) -> None:
    """Keep it if the folder can be written; else it is measured again next time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(costs)))
        partial.replace(path)
    except OSError:
        log.warning("the measured costs could not be kept", exc_info=True)
