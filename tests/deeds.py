"""Deeds in place of races, and lives of a worker process: it imports them."""

import ctypes
import os
import resource
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from backend.events import Event, Finished, Preparing, to_json
from backend.models.prepared import prepared
from backend.racing.hosts import say
from backend.racing.models import LoadedModels

Emit = Callable[[Event], None]
Stopped = Callable[[], bool]


@dataclass(frozen=True)
class Deed:
    """Says that it begins; `payload` makes it large to send."""

    payload: str = ""
    columns: tuple[str, ...] = ("one",)

    def run(self, models: LoadedModels, emit: Emit, stopped: Stopped) -> None:
        emit(Preparing("begun"))
        self.do(models, stopped)
        emit(Finished(0, "end of text", []))

    def do(self, models: LoadedModels, stopped: Stopped) -> None: ...


@dataclass(frozen=True)
class Wait(Deed):
    """Waits for ever, as in a deadlock."""

    def do(self, models: LoadedModels, stopped: Stopped) -> None:
        threading.Event().wait()


@dataclass(frozen=True)
class HoldInterpreter(Deed):
    """Waits for ever in native code that lets no other thread of the interpreter run."""

    def do(self, models: LoadedModels, stopped: Stopped) -> None:
        ctypes.PyDLL(None).sleep(100_000)


@dataclass(frozen=True)
class WaitForOthers(Deed):
    """Waits without computing for what happens elsewhere, and looks after a stop meanwhile."""

    looks: int = 0

    def do(self, models: LoadedModels, stopped: Stopped) -> None:
        for _ in range(self.looks):
            if stopped():
                return
            threading.Event().wait(0.05)


@dataclass(frozen=True)
class TakeMemory(Deed):
    """Ends column 0, and takes more memory than there is. The limit is lifted afterwards."""

    columns: tuple[str, ...] = ("one", "two")

    def run(self, models: LoadedModels, emit: Emit, stopped: Stopped) -> None:
        emit(Finished(0, "token limit", []))
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms, before[1]))
        try:
            bytearray(2**30)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)


@dataclass(frozen=True)
class Prepare(Deed):
    """Prepares a folder of the cache `payload`, and gets stuck half-way if `stuck`."""

    stuck: bool = False

    def do(self, models: LoadedModels, stopped: Stopped) -> None:
        os.environ["DECODE_DERBY_CACHE"] = self.payload
        prepared("folder", "recipe", self._build)

    def _build(self, folder: Path) -> None:
        (folder / "half").write_text("one")
        if self.stuck:
            ctypes.PyDLL(None).sleep(100_000)
        (folder / "other half").write_text("two")


@dataclass(frozen=True)
class Die(Deed):
    """Dies at once of this signal."""

    number: int = signal.SIGKILL

    def run(self, models: LoadedModels, emit: Emit, stopped: Stopped) -> None:
        os.kill(os.getpid(), self.number)


def aborting(*_: object) -> None:
    """The life of a worker that cannot start."""
    os.kill(os.getpid(), signal.SIGABRT)


def preparing(connection: Connection, *_: object) -> None:
    """The life of a worker that converts a model for ever."""
    say(connection, to_json(Preparing("Converting the model...")))
    threading.Event().wait()
