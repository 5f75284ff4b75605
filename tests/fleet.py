"""A cluster without ray: machines whose races the test lets go on, end, and be lost."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from queue import SimpleQueue
from typing import Any

from backend.cluster.choice import Machine
from backend.cluster.host import ClusterHost
from backend.events import Event, to_json
from backend.racing.commands import Command


class Fleet:
    """A link whose other end is the test. `begun` are commands by number, and their machines."""

    def __init__(self, *keys: str) -> None:
        self.begun: dict[int, tuple[str, Command]] = {}
        self.stopped: list[int] = []
        self._said: SimpleQueue[Mapping[str, Any] | None] = SimpleQueue()
        self.have(*keys)

    def begin(self, run: int, machine: str, command: Command) -> None:
        self.begun[run] = machine, command

    def stop(self, run: int) -> None:
        self.stopped.append(run)

    def hear(self) -> Mapping[str, Any]:
        if (said := self._said.get()) is None:
            self._said.put(None)
            raise EOFError
        return said

    def close(self) -> None:
        self._said.put(None)

    def have(self, *keys: str, without_engine: str = "") -> None:
        """These are the machines now; one of them may have no engine."""
        self.keys = keys
        machines = [
            Machine(key, f"node {key}", devices={} if key == without_engine else {"fake": ["CPU"]})
            for key in keys
        ]
        self._said.put({"machines": [asdict(machine) for machine in machines]})

    def tell(self, run: int, events: Iterable[Event]) -> None:
        self._said.put({"run": run, "events": [to_json(event) for event in events]})

    def end(self, run: int, why: str = "") -> None:
        self._said.put({"run": run, "ended": why})


def host_of(*fleets: Fleet) -> ClusterHost:
    """A host that reaches these, each once the one before is lost, once there is one to reach."""
    waiting = list(fleets)

    def connect() -> Fleet:
        return waiting.pop(0) if waiting else _unreachable()

    return ClusterHost("here", connect)


def _unreachable() -> Fleet:
    raise OSError("nothing more to connect to")
