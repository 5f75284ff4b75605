"""Whose processor time it was while a race ran, so that one that others disturbed says so."""

import multiprocessing
import time
from contextlib import suppress

from backend.events import Conditions
from backend.machine import cores

#: Seconds between two looks at whether a race has become noisy.
LOOK = 2.0


class Ledger:
    """Begins when it is made."""

    def __init__(self) -> None:
        self._total, self._others = _read()
        self._looked, self._noisy = time.monotonic(), False

    def conditions(self) -> Conditions:
        """What happened since the beginning."""
        total, others = _read()
        total, others = total - self._total, others - self._others
        # The clocks of system and process tick apart.
        return Conditions(cores(), min(1.0, max(0.0, others / total)) if total > 0 else 0.0)

    def turned(self) -> Conditions | None:
        """The same if the machine has become noisy, or no longer is, since the last look; looks
        every `LOOK` seconds. Nothing where there is no memory left to look with.
        """
        if time.monotonic() - self._looked < LOOK:
            return None
        self._looked = time.monotonic()
        with suppress(MemoryError, OSError):  # the column that runs into it says so
            conditions = self.conditions()
            if conditions.noisy != self._noisy:
                self._noisy = conditions.noisy
                return conditions
        return None


def _read() -> tuple[float, float]:
    """Seconds of processor time so far: all there were, and those of others than this process, its
    children, such as a library's server, and the page's own process.
    """
    import psutil

    times = psutil.cpu_times()._asdict()
    # Linux counts what guests use as user time too.
    seconds = {name: value for name, value in times.items() if not name.startswith("guest")}
    total = sum(seconds.values())
    others = total - seconds.get("idle", 0.0) - seconds.get("iowait", 0.0)
    page, process = multiprocessing.parent_process(), psutil.Process()
    for each in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):  # it has ended, or may not be looked at
            others -= sum(each.cpu_times()[:4])  # with those of its children that ended
    if page is not None:  # whose worker this is
        with suppress(psutil.Error):
            others -= sum(psutil.Process(page.pid).cpu_times()[:2])
    return total, others
