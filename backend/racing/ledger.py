"""Whose processor time it was while a race ran, so that one that others disturbed says so."""

import multiprocessing
from contextlib import suppress

from backend.events import Conditions
from backend.machine import cores


class Ledger:
    """Begins when it is made."""

    def __init__(self) -> None:
        self._total, self._others = _read()

    def conditions(self) -> Conditions:
        """What happened since the beginning."""
        total, others = _read()
        total, others = total - self._total, others - self._others
        # The clocks of system and process tick apart.
        return Conditions(cores(), min(1.0, max(0.0, others / total)) if total > 0 else 0.0)


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
    for child in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):  # it has ended, or may not be looked at
            others -= sum(child.cpu_times()[:4])  # with those of its children that ended
    if page is not None:  # whose worker this is
        with suppress(psutil.Error):
            others -= sum(psutil.Process(page.pid).cpu_times()[:2])
    return total, others
