"""Whose processor time it was while a race ran, so that one that others disturbed says so."""

import multiprocessing
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

import psutil

from backend.events import Conditions
from backend.libraries.server import local_port


class Ledger:
    """Begins when it is made. `servers` belong to the race where their processes can be seen."""

    def __init__(self, servers: Iterable[str] = ()) -> None:
        self._servers = set(_listening({local_port(server) for server in servers} - {0}))
        self._total, self._others = _read(self._servers)

    def conditions(self) -> Conditions:
        """What happened since the beginning."""
        total, others = _read(self._servers)
        total, others = total - self._total, others - self._others
        # The clocks of system and process tick apart.
        return Conditions(min(1.0, max(0.0, others / total)) if total > 0 else 0.0)


def _listening(ports: Collection[int]) -> Iterator[psutil.Process]:
    """The processes that listen at these ports; of another user's no number is known."""
    for each in psutil.net_connections("tcp") if ports else ():
        listens = each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port in ports
        if listens and each.pid:
            with suppress(psutil.Error):  # it has ended
                yield psutil.Process(each.pid)


def _read(servers: Iterable[psutil.Process]) -> tuple[float, float]:
    """Seconds of processor time so far: all there were, and those of others than this process and
    the servers, their children, such as a library's server, and the page's own process.
    """
    times = psutil.cpu_times()
    total = sum(times)
    others = total - times.idle - getattr(times, "iowait", 0.0)
    page, race = multiprocessing.parent_process(), set[psutil.Process]()
    for process in (psutil.Process(), *servers):
        with suppress(psutil.Error):  # it has ended, or may not be looked at
            race |= {process, *process.children(recursive=True)}
    for process in race:
        with suppress(psutil.Error):
            others -= sum(process.cpu_times()[:4])  # with those of its children that ended
    if page is not None:  # whose worker this is
        with suppress(psutil.Error):
            others -= sum(psutil.Process(page.pid).cpu_times()[:2])
    return total, others
