"""What forward passes cost: T(k), the time of one pass over k rows, measured once and kept.

From it follows what speculation can gain: a step that verifies k - 1 guesses costs T(k) / T(1)
plain steps, so it pays only while it commits more tokens than that.
"""

import json
import logging
import platform
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from statistics import median
from time import perf_counter

from backend.engines.base import Engine, Session
from backend.prepared import cache_dir
from backend.types import PREFILL_CHUNK, ModelSpec, chain_parents

log = logging.getLogger(__name__)

#: Raise it whenever the measurement changes.
RECIPE = "costs v1"

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48)

#: Tokens before the measured rows, and how often each width is measured.
CONTEXT = 128
ROUNDS = 7

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a forward pass over each of `widths` rows, ascending, the first 1.

    `change` is what a pass costs on top when the one before it had another number of rows.
    """

    widths: tuple[int, ...]
    seconds: tuple[float, ...]
    change: float = 0.0

    def __call__(self, rows: int) -> float:
        """Seconds of a pass over so many rows: between the measured ones, and beyond them, on
        straight lines.
        """
        last = len(self.widths) - 2
        index = next((i for i in range(last) if rows <= self.widths[i + 1]), max(last, 0))
        if last < 0:
            return self.seconds[0]
        (a, b), (low, high) = self.widths[index : index + 2], self.seconds[index : index + 2]
        return low + (high - low) * (rows - a) / (b - a)

    @property
    def known(self) -> bool:
        """False of FREE: nobody measured it."""
        return len(self.widths) > 1

    @property
    def plain(self) -> float:
        """Seconds of a pass over one row: a plain decode step."""
        return self.seconds[0]

    def relative(self, rows: int) -> float:
        """T(rows) / T(1): how many plain steps such a pass costs."""
        return self(rows) / self.plain


#: What an engine costs whose passes are not worth measuring: nothing tells one from another.
FREE = Costs((1,), (1e-3,))

#: What the model "fake-priced" is said to cost: so much a row that no guess pays.
STEEP = Costs(WIDTHS, tuple(5e-4 * (1 + rows) for rows in WIDTHS), 1e-4)


def costs_of(engine: Engine, say: Say, *, again: bool = False) -> Costs:
    """The engine's costs, from the cache folder or, once and with `again`, measured now."""
    if engine.spec.engine == "fake":
        return STEEP if engine.spec.name == "fake-priced" else FREE
    path = _path(engine.fingerprint, engine.spec)
    known = None if again else _read(path)
    if known is None:
        say(f"Measuring what passes of {engine.spec} cost...")
        known = measure(engine)
        _write(path, known)
    return known


def measure(engine: Engine, widths: Sequence[int] = WIDTHS, rounds: int = ROUNDS) -> Costs:
    """Time passes of each width, in another order each round; takes a few seconds.

    Of each width, two passes in a row: the first tells what the change of width costs.
    """
    order = random.Random(0)
    first: dict[int, list[float]] = {k: [] for k in widths}
    steady: dict[int, list[float]] = {k: [] for k in widths}
    for _ in range(rounds):
        session = engine.open()
        _timed(engine, session, CONTEXT)
        session.keep(range(CONTEXT))
        for k in order.sample(widths, len(widths)):
            for found in (first, steady):
                found[k].append(_timed(engine, session, k))
                session.truncate(CONTEXT)
        session.close()
    usual = [_quartile(steady[k]) for k in widths]
    # A wider pass is never cheaper: where it seems so, the clock was disturbed.
    seconds = [max(usual[: i + 1]) for i in range(len(usual))]
    change = median(_quartile(first[k]) - _quartile(steady[k]) for k in widths)
    return Costs(tuple(widths), tuple(seconds), max(0.0, change))


def _quartile(times: Sequence[float]) -> float:
    """The lower quartile: whatever else the machine does can only lengthen a pass."""
    return sorted(times)[len(times) // 4]


def _timed(engine: Engine, session: Session, rows: int) -> float:
    """Seconds of a pass over `rows` tokens whose logits are all wanted, the prompt's apart."""
    wanted = range(rows) if rows < PREFILL_CHUNK else ()
    engine.synchronize()
    start = perf_counter()
    session.forward([7] * rows, chain_parents(rows), wanted)
    engine.synchronize()
    return perf_counter() - start


def _path(fingerprint: str, spec: ModelSpec) -> Path:
    """One file for each model, engine, precision, device and machine."""
    machine = f"{platform.node()} {platform.machine()} {platform.processor()}"
    key = f"{RECIPE} {fingerprint} {spec} {machine}"
    return cache_dir() / "costs" / f"{sha256(key.encode()).hexdigest()[:24]}.json"


def _read(path: Path) -> Costs | None:
    try:
        found = json.loads(path.read_text())
        return Costs(tuple(found["widths"]), tuple(found["seconds"]), found["change"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, costs: Costs) -> None:
    """Keep it if the folder can be written; else it is measured again next time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(costs)))
        partial.replace(path)
    except OSError:
        log.warning("the measured costs could not be kept", exc_info=True)
