"""Progress sentences while a model is prepared."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

from backend.models.prepared import Building, building
from backend.racing.usual import size

#: Seconds between two looks at how far it has come.
LOOK = 1.0

#: Memory that has come since the last sentence and is worth a word, in bytes.
WORTH = 1e8

#: The share that must have come before the time that is left can be told.
TELLING = 0.02

#: The share of the mapped files that is read once all is: an engine may leave their headers alone.
ALL = 0.98

#: Where Linux lists what a process maps: a line a region.
MAPS = Path("/proc/self/maps")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes that this process holds: its own, and what it has read of the files that it maps, of
    `mapped` bytes in all; 0: unknown.
    """

    own: int
    read: int = 0
    mapped: int = 0

    def __sub__(self, other: "Held") -> "Held":
        return Held(self.own - other.own, self.read - other.read, self.mapped - other.mapped)


def held() -> Held:
    """What it holds now."""
    import psutil

    facts = psutil.Process().memory_info()
    if (mapped := _mapped()) == 0:
        return Held(facts.rss)
    return Held(facts.rss - facts.shared, facts.shared, mapped)


def _mapped() -> int:
    """Bytes of all mapped files but libraries; 0 where nobody tells."""
    total = 0
    with suppress(OSError):
        for line in MAPS.read_text(errors="replace").splitlines():
            region, _, _, _, inode, *path = line.split(maxsplit=5)
            if inode != "0" and path and ".so" not in path[0]:
                begin, end = region.split("-")
                total += int(end, 16) - int(begin, 16)
    return total


class Progress:
    """Adds to the latest sentence how much of a prepared folder's file is written, or else how much
    of a model's files was read and how much memory was taken. Says nothing while nothing comes:
    silence tells of a process that hangs.
    """

    def __init__(self, say: Say, memory: Callable[[], Held], weights: int = 0) -> None:
        """`memory` tells what this process holds, `weights` how many bytes of its own the model
        will take; 0: unknown.
        """
        self._say, self._memory, self._weights = say, memory, weights
        self._lock = threading.Lock()
        self._sentence, self._held, self._mapping = "", Held(0), False
        self._told: tuple[str, float] = ("", 0.0)
        self._first: tuple[str, float, int] | None = None

    def say(self, sentence: str) -> None:
        with self._lock:
            self._sentence, self._told, self._first = sentence, ("", 0.0), None
            self._held, self._mapping = self._memory(), False
            self._say(sentence)

    def look(self, now: float, folders: tuple[Building, ...]) -> None:
        """Say how far it has come by `now`, in seconds, if that is further than before."""
        with self._lock:
            how, done, total = self._come(folders)
            before = self._told[1] if how == self._told[0] else 0.0
            worth = 1 if how == "written" else WORTH
            if not self._sentence or done <= 0 or abs(done - before) < worth:
                return
            self._told = how, done
            self._say(f"{self._sentence} {self._part(now, how, done, total)}")

    def _come(self, folders: tuple[Building, ...]) -> tuple[str, int, int]:
        """What happens to how many bytes, of how many; 0: unknown."""
        if found := next((folder for folder in folders if folder.written), None):
            return "written", found.written, found.needs
        now = self._memory()
        come = now - self._held
        if not come.mapped:
            return "in memory", come.own, 0
        if not self._mapping:  # what libraries took before is not the model's
            self._mapping, self._held = True, replace(self._held, own=now.own)
        if come.read < ALL * come.mapped:
            return "read", come.read, come.mapped
        return "in memory", now.own - self._held.own, self._weights

    def _part(self, now: float, how: str, done: int, total: int) -> str:
        if self._first is None or self._first[0] != how:
            self._first = how, now, done
        _, began, before = self._first
        if not total > done:
            return f"{size(done)} {how}"
        said = f"{size(done)} of about {size(total)} {how} ({done / total:.0%})"
        if done - before < TELLING * total:
            return said
        left = (total - done) * (now - began) / (done - before)
        return f"{said}, about {max(1, left):.0f} s left"


@contextmanager
def progress(say: Say, weights: int = 0) -> Iterator[Say]:
    """What to tell sentences meanwhile; `say` hears them, and from a thread that the first one
    starts what comes to them, one at a time. `weights`: see Progress.
    """
    ended, told = threading.Event(), Progress(say, held, weights)

    def look() -> None:
        while not ended.wait(LOOK):
            told.look(perf_counter(), building())

    looking = threading.Thread(target=look, name="progress", daemon=True)

    def tell(sentence: str) -> None:
        told.say(sentence)
        if looking.ident is None:
            looking.start()

    try:
        yield tell
    finally:
        ended.set()
        if looking.ident is not None:
            looking.join()
