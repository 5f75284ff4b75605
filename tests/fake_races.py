"""Fake races, and lives of a worker process: it imports them."""

import ctypes
import os
import resource
import signal
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from backend.events import Failed, Finished, Preparing, to_json
from backend.models.prepared import prepared
from backend.racing.hosts import ENDED, READY, Emit, Stopped, send
from backend.racing.models import LoadedModels


@dataclass(frozen=True)
class FakeRace:
    """Ends its one column."""

    columns: tuple[str, ...] = ("one",)

    def run(self, models: LoadedModels, emit: Emit, stopped: Stopped) -> None:
        self.do(emit, stopped)
        emit(Finished(0, "end of text", []))

    def do(self, emit: Emit, stopped: Stopped) -> None: ...


@dataclass(frozen=True)
class Wait(FakeRace):
    """Waits without computing, and looks after a stop meanwhile."""

    looks: int = 0

    def do(self, emit: Emit, stopped: Stopped) -> None:
        for _ in range(self.looks):
            if stopped():
                return
            threading.Event().wait(0.05)


@dataclass(frozen=True)
class Break(FakeRace):
    """Ends two of its five columns, and raises."""

    columns: tuple[str, ...] = ("",) * 5

    def do(self, emit: Emit, stopped: Stopped) -> None:
        emit(Finished(1, "token limit", []))
        emit(Failed(3, "Its own error."))
        raise ZeroDivisionError


@dataclass(frozen=True)
class TakeMemory(FakeRace):
    """Ends column 0, and takes more memory than there is. The limit is lifted afterwards."""

    columns: tuple[str, ...] = ("one", "two")

    def do(self, emit: Emit, stopped: Stopped) -> None:
        emit(Finished(0, "token limit", []))
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms, before[1]))
        try:
            bytearray(2**30)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)


@dataclass(frozen=True)
class Prepare(FakeRace):
    """Prepares a folder of the cache `cache`, and gets stuck half-way if `stuck`."""

    cache: str = ""
    stuck: bool = False

    def do(self, emit: Emit, stopped: Stopped) -> None:
        os.environ["DECODE_DERBY_CACHE"] = self.cache
        emit(Preparing("Converting the model..."))
        prepared("folder", "recipe", self._build)

    def _build(self, folder: Path) -> None:
        (folder / "half").write_text("one")
        if self.stuck:
            ctypes.PyDLL(None).sleep(100_000)
        (folder / "other half").write_text("two")


def aborting(*_: object) -> None:
    """The life of a worker that cannot start."""
    os.kill(os.getpid(), signal.SIGABRT)


def leaving(connection: Connection, *_: object) -> None:
    """The life of a worker that dies behind its race, slowly: its memory is dumped."""
    send(connection, READY)
    connection.recv()
    send(connection, ENDED)
    connection.close()
    threading.Event().wait()


def preparing(connection: Connection, *_: object) -> None:
    """The life of a worker that converts a model for ever."""
    send(connection, to_json(Preparing("Converting the model...")))
    threading.Event().wait()
