"""A column's own clock: wall time of its device-synchronised steps and of nothing else."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Literal

Phase = Literal["draft", "mask", "forward"]


class Clock:
    """Adds up the seconds spent inside `step()`, split into parts.

    A step must open and close between two yields of the decoding loop; the interleaver checks
    `running` after every turn, so time outside a column's own work can never be counted.
    `synchronize` waits for the device of the column's model.
    """

    def __init__(self, synchronize: Callable[[], None] = lambda: None) -> None:
        self.seconds = 0.0
        self.running = False
        self.last: dict[str, float] = {}
        self.synchronize = synchronize

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time one step. `last` then holds its seconds: draft, mask, forward, rest and total."""
        if self.running:
            raise RuntimeError("step inside another")
        self.last = {"draft": 0.0, "mask": 0.0, "forward": 0.0}
        self.synchronize()
        self.running = True
        start = perf_counter()
        try:
            yield
        finally:
            try:
                self.synchronize()
            finally:  # a device may tell of its failure only now
                self.running = False
            total = perf_counter() - start
            self.seconds += total
            self.last["rest"] = total - sum(self.last.values())
            self.last["total"] = total

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Attribute time inside a step to one of its parts, device work included."""
        start = perf_counter()
        try:
            yield
        finally:
            self.synchronize()
            self.last[name] += perf_counter() - start


def rounded(seconds: float) -> float:
    """Seconds to 0.1 us, as events hold them; what learns or takes turns reads the clock itself."""
    return round(seconds, 7)


def rounded_value(value: float) -> float:
    """Three significant digits; infinite stays infinite."""
    return float(f"{value:.3g}")
