"""Finds a worker that will never do anything again, and leaves alone one that works without a word.

Models are loaded and converted for minutes in native code that lets no thread of the interpreter
run: what tells work from a deadlock is the processor time used.
"""

from typing import Protocol

from backend.racing.hosts.death import HALTED, Death

#: Seconds between two looks at a worker.
LOOK = 1.0

#: Looks in a row that find a process halted before it is lost: with Ctrl-Z and `fg` the whole app
#: is halted, and its processes go on one after another.
HALTED_LOOKS = 3

#: Looks in a row at a worker that has something to do, says nothing and uses no processor time,
#: before it is lost. Whoever waits for a lock on a file uses more than that.
STILL_LOOKS = 120

#: Seconds of processor time that count as work: two ticks of the clock that it is measured with.
WORK = 0.02

HUNG = Death("hung", f"it did nothing for {STILL_LOOKS * LOOK:g} s")


class Vitals(Protocol):
    """What can be seen of a process from outside."""

    def halted(self) -> bool: ...

    def used(self) -> float:
        """Seconds of processor time, with its children's."""
        ...


class Watch:
    """Counts looks and not seconds: that the computer slept, or the app itself was halted, is no
    fault of the worker's.
    """

    def __init__(self, vitals: Vitals) -> None:
        self._vitals = vitals
        self._halted = 0
        self._still = 0
        self._signs = 0
        self._used = 0.0

    def look(self, *, idle: bool, signs: int) -> Death | None:
        """What the worker is lost by, None while it is not. `signs`: what it has said so far."""
        self._halted = self._halted + 1 if self._vitals.halted() else 0
        if self._halted >= HALTED_LOOKS:
            return HALTED
        self._still = 0 if idle or self._works(signs) else self._still + 1
        return HUNG if self._still >= STILL_LOOKS else None

    def _works(self, signs: int) -> bool:
        """Whether something was said, or done, since this was last true."""
        said, self._signs = signs != self._signs, signs
        if said:
            return True
        used = self._vitals.used()
        if worked := abs(used - self._used) >= WORK:  # less: of a child that ended
            self._used = used
        return worked


class ProcessVitals:
    """Those of a process of this computer. One that may not be looked at seems to work."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._unseen = 0.0

    def halted(self) -> bool:
        import psutil

        try:
            return psutil.Process(self._pid).status() == psutil.STATUS_STOPPED
        except psutil.Error:
            return False

    def used(self) -> float:
        import psutil

        try:
            process = psutil.Process(self._pid)
            return sum(
                sum(each.cpu_times()[:4])  # user, system, and those of children that ended
                for each in (process, *process.children(recursive=True))
            )
        except psutil.Error:
            self._unseen += WORK
            return self._unseen


def resident(pid: int) -> int:
    """Bytes of memory that a process holds; 0: unknown."""
    import psutil

    try:
        return psutil.Process(pid).memory_info().rss if pid else 0
    except psutil.Error:
        return 0
