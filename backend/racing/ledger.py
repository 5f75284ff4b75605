"""Whose processor time it was while a race ran, so that one that others disturbed says so."""

import multiprocessing
import os
import time
from dataclasses import dataclass

from backend.events import Conditions
from backend.machine import cores

#: Seconds between two looks at whether a race has become noisy.
LOOK = 2.0


@dataclass(frozen=True, slots=True)
class _Reading:
    """Seconds of processor time so far: all there were, and what neither this process and its
    children nor the page's process had.
    """

    total: float
    others: float


class Ledger:
    """Begins when it is made."""

    def __init__(self) -> None:
        self._begun = _read()
        self._looked, self._noisy = time.monotonic(), False

    def conditions(self) -> Conditions:
        """What happened since the beginning."""
        begun, now = self._begun, _read()
        total, others = now.total - begun.total, now.others - begun.others
        # The clocks of system and process tick apart.
        return Conditions(cores(), min(1.0, max(0.0, others / total)) if total > 0 else 0.0)

    def turned(self) -> Conditions | None:
        """The same if the machine has become noisy, or no longer is, since the last look; looks
        every `LOOK` seconds. Nothing where there is no memory left to look with.
        """
        now = time.monotonic()
        if now - self._looked < LOOK:
            return None
        self._looked = now
        try:
            found = self.conditions()
        except (MemoryError, OSError):  # the column that runs into it says so
            return None
        if found.noisy == self._noisy:
            return None
        self._noisy = found.noisy
        return found


def _read() -> _Reading:
    import psutil

    times = psutil.cpu_times()._asdict()
    # Linux counts what guests use as user time too.
    seconds = {name: value for name, value in times.items() if not name.startswith("guest")}
    idle = seconds.get("idle", 0.0) + seconds.get("iowait", 0.0)
    total = sum(seconds.values())
    parent = multiprocessing.parent_process()  # the page's, if this is its worker
    page = _used_alone(parent.pid) if parent is not None and parent.pid else 0.0
    own = used(os.getpid()) if parent is None else None  # a page's worker has no children that work
    own = _used_alone(os.getpid()) if own is None else own
    return _Reading(total, total - idle - own - page)


def used(pid: int) -> float | None:
    """Seconds of processor time of a process and its children; None: it may not be looked at."""
    import psutil

    try:
        process = psutil.Process(pid)
        return sum(
            sum(each.cpu_times()[:4])  # user, system, and those of children that ended
            for each in (process, *process.children(recursive=True))
        )
    except psutil.Error:
        return None


def _used_alone(pid: int) -> float:
    """The same of its own threads alone."""
    import psutil

    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system
