"""The page's connection to the driver, a process of its own."""

import json
import multiprocessing
import threading
from collections.abc import Mapping
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

from backend.cluster.actor import Setup
from backend.processes import spawn
from backend.racing.commands import Command


class Link(Protocol):
    """What the page knows of a cluster. Lost for good once `hear` raises EOFError."""

    def begin(self, run: int, machine: str, command: Command) -> None:
        """Have a machine, by its key, carry out a command. `run` is a number never used before."""
        ...

    def stop(self, run: int) -> None: ...

    def hear(self) -> Mapping[str, Any]:
        """What is said next, as `driver.drive` says it. Raises EOFError once the driver is gone."""
        ...

    def close(self) -> None: ...


class DriverLink:
    """A driver process."""

    def __init__(self, address: str, setup: Setup) -> None:
        from backend.cluster.driver import drive

        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=drive, args=(theirs, address, setup), name="cluster driver", daemon=True
        )
        self._lock = threading.Lock()
        spawn(self._process)
        theirs.close()

    def begin(self, run: int, machine: str, command: Command) -> None:
        self._send(("begin", run, machine, command))

    def stop(self, run: int) -> None:
        self._send(("stop", run))

    def _send(self, request: tuple[Any, ...]) -> None:
        data = ForkingPickler.dumps(request)
        with self._lock:
            try:
                self._connection.send_bytes(data)
            except OSError:
                return  # it is gone, as `hear` finds

    def hear(self) -> Mapping[str, Any]:
        try:
            return json.loads(self._connection.recv_bytes())
        except OSError as error:
            raise EOFError from error

    def close(self) -> None:
        self._process.kill()
        self._process.join()
