"""Measures what passes cost that serve several requests each."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import psutil

from backend.costs.load import UNKNOWN_LOAD, LoadCosts
from backend.costs.measure import LONG_CONTEXT, curve, prefilled
from backend.costs.pass_costs import PassCosts
from backend.engines.base import Engine
from backend.errors import DerbyError

log = logging.getLogger(__name__)

#: How many requests at once, and rows of each, are measured.
REQUESTS = (1, 2, 4, 8, 16, 32)
LOAD_WIDTHS = (1, 2, 3, 5, 8, 16)

#: How often each number of rows is measured, for each number of requests and at either context.
LOAD_ROUNDS = 3

#: The part of the free memory that caches and logits may take meanwhile.
MEMORY_SHARE = 0.4

Say = Callable[[str], None]


def measure_load(
    engine: Engine,
    say: Say,
    stopped: Callable[[], bool] = lambda: False,
    requests: Sequence[int] = (),
    rounds: int = 0,
) -> LoadCosts:
    """Time passes of REQUESTS, LOAD_ROUNDS times each, unless told otherwise: about a minute on two
    cores.

    Ends with the number of requests before the first that does not fit; unknown if it is `stopped`,
    which is asked before each number. Raises DerbyError if
    not even one request can be measured so.
    """
    if not engine.capabilities.batch:
        raise DerbyError(
            f"{engine.spec} computes one request per pass, so load cannot be measured."
        )
    requests, rounds = requests or REQUESTS, rounds or LOAD_ROUNDS
    fitting = [b for b in requests if b == 1 or b * _bytes_of(engine) <= _free()]
    curves: list[PassCosts] = []
    for b in fitting:
        if stopped():
            return UNKNOWN_LOAD
        say(f"Measuring passes of {engine.spec} for {b} {'request' if b == 1 else 'requests'}...")
        try:
            curves.append(curve(engine, b, LOAD_WIDTHS, rounds))
        except Exception as error:
            log.warning("passes of %d requests failed", b, exc_info=True)
            if not curves:
                reason = str(error).strip().partition("\n")[0].rstrip(".")
                raise DerbyError(
                    f"Load on {engine.spec} could not be measured ({reason})."
                ) from error
            say(f"Passes for {b} requests do not fit: {len(curves)} loads are known.")
            break
    return LoadCosts(tuple(requests[: len(curves)]), tuple(_undisturbed(curves)))


def _undisturbed(curves: Sequence[PassCosts]) -> list[PassCosts]:
    """More requests are never cheaper: where they seem so, the fewer ones were disturbed."""
    least, found = curves[-1].seconds, [curves[-1]]
    for each in reversed(curves[:-1]):
        least = tuple(map(min, each.seconds, least))
        found.append(replace(each, seconds=least))
    return found[::-1]


def _bytes_of(engine: Engine) -> int:
    """Bytes that one more request takes: its cache, a copy of it, and its logits."""
    cache = prefilled(engine, 1)
    row = sum(array.nbytes for array in cache.values())
    return 3 * row * LONG_CONTEXT + 8 * engine.tokenizer.vocab_size * LOAD_WIDTHS[-1]


def _free() -> float:
    return MEMORY_SHARE * psutil.virtual_memory().available
