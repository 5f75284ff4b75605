"""Progress sentences while a model is prepared."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

from backend.models.prepared import Building, building
from backend.racing.usual import size

#: Seconds between two looks at how far it has come.
LOOK = 1.0

#: Memory that has come since the last sentence and is worth a word, in bytes.
WORTH = 2e8

#: The share of a file that must have come before the time that is left can be told.
TELLING = 0.02

Say = Callable[[str], None]


class Progress:
    """Adds to the latest sentence how much of a prepared folder's file is written, or how much
    memory was taken. Says nothing while nothing comes: silence tells of a process that hangs.
    """

    def __init__(self, say: Say, memory: Callable[[], int]) -> None:
        """`memory` tells how many bytes this process holds."""
        self._say, self._memory = say, memory
        self._lock = threading.Lock()
        self._sentence, self._held = "", memory()
        self._told = 0.0
        self._first: tuple[float, int] | None = None

    def say(self, sentence: str) -> None:
        with self._lock:
            self._sentence, self._told, self._first = sentence, 0.0, None
            self._say(sentence)

    def look(self, now: float, folders: tuple[Building, ...]) -> None:
        """Say how far it has come by `now`, in seconds, if that is further than before."""
        with self._lock:
            written, total = next(((f.written, f.needs) for f in folders if f.written), (0, 0))
            done = written or self._memory() - self._held
            if not self._sentence or abs(done - self._told) < (1 if written else WORTH):
                return
            self._told = done
            come = self._writing(now, written, total) if written else f"{size(done)} in memory"
            self._say(f"{self._sentence} {come}")

    def _writing(self, now: float, written: int, total: int) -> str:
        self._first = self._first or (now, written)
        began, before = self._first
        if not total > written:
            return f"{size(written)} written"
        said = f"{size(written)} of about {size(total)} written ({written / total:.0%})"
        if written - before < TELLING * total:
            return said
        return f"{said}, about {(total - written) * (now - began) / (written - before):.0f} s left"


@contextmanager
def progress(say: Say) -> Iterator[Say]:
    """What to tell sentences meanwhile; `say` hears them, and from a thread of its own what comes
    to them, one at a time.
    """
    import psutil

    process, ended = psutil.Process(), threading.Event()
    told = Progress(say, lambda: process.memory_info().rss)

    def look() -> None:
        while not ended.wait(LOOK):
            told.look(perf_counter(), building())

    looking = threading.Thread(target=look, name="progress", daemon=True)
    looking.start()
    try:
        yield told.say
    finally:
        ended.set()
        looking.join()
