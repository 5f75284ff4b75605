"""Fake races, and lives of a worker process: it imports them."""

import ctypes
import os
import signal
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection

from backend.events import Failed, Finished, Preparing, to_json
from backend.racing.hosts import Emit, Stopped, send
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
class HoldInterpreter(FakeRace):
    """Waits for ever in native code that lets no other thread of the interpreter run."""

    def do(self, emit: Emit, stopped: Stopped) -> None:
        emit(Preparing("begun"))
        ctypes.PyDLL(None).sleep(100_000)


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


def aborting(*_: object) -> None:
    """The life of a worker that cannot start."""
    os.kill(os.getpid(), signal.SIGABRT)


def preparing(connection: Connection, *_: object) -> None:
    """The life of a worker that converts a model for ever."""
    send(connection, to_json(Preparing("Converting the model...")))
    threading.Event().wait()
