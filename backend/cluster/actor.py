"""What runs on one machine of a cluster: a host whose worker owns the engines, heard in batches."""

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.engines.registry import engines
from backend.errors import explain
from backend.events import to_json
from backend.limits import PRIVATE, Limits
from backend.racing.commands import Command
from backend.racing.hosts.process import ProcessHost
from backend.racing.preparation import fetch_offered
from backend.records.place import this_machine
from backend.types import ModelSpec

log = logging.getLogger(__name__)

#: Seconds for which an answer waits for the race's end: so often is a race heard, and its machine
#: known to be there.
BATCH = 0.2


@dataclass(frozen=True, slots=True)
class Setup:
    """What a machine is told when it joins. `warm` and `limits` as of a ProcessHost, `models` are
    offered to visitors, `engines` by name too, and `environment` is set.
    """

    warm: tuple[ModelSpec, ...] = ()
    limits: Limits = PRIVATE
    models: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


class _Heard:
    """What a race has said and nobody has heard yet. Thread-safe."""

    def __init__(self) -> None:
        self.stopped, self._over = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._events: list[Any] = []

    def say(self, event: Any) -> None:
        with self._lock:
            self._events.append(event)

    def end(self) -> None:
        self._over.set()

    def take(self) -> tuple[list[Any], bool]:
        """The events since the last time, and whether there will be no more."""
        self._over.wait(BATCH)
        with self._lock:
            over, events, self._events = self._over.is_set(), self._events, []
            return events, over


class RacingActor:
    """One machine, or one GPU of it: part `part` of `parts`, which share its cores. Its methods
    are called from several threads; races are told apart by numbers that the caller gives.
    """

    def __init__(self, setup: Setup, part: int = 0, parts: int = 1) -> None:
        """Raises DerbyError if an offered model of the Hub cannot be had."""
        os.environ.update(setup.environment)
        if parts > 1 and hasattr(os, "sched_setaffinity"):
            mine = sorted(os.sched_getaffinity(0))[part::parts]
            os.sched_setaffinity(0, mine or os.sched_getaffinity(0))
        fetch_offered(setup.models, log.info)
        self._setup = setup
        self._races: dict[int, _Heard] = {}
        self._host = ProcessHost(setup.warm, setup.limits)

    def facts(self) -> dict[str, Any]:
        """Fields of a choice.Machine that the machine itself knows, and that never change."""
        here = this_machine()
        return {
            "processor": here.processor,
            "cores": here.cores,
            "memory": here.memory,
            "system": here.system,
            "devices": {name: _devices(name) for name in self._setup.engines},
            "models": [name for name in self._setup.models if Path(name).expanduser().exists()],
        }

    def preparing(self) -> str:
        """What it still does before it takes races."""
        return self._host.facts().preparing

    def begin(self, number: int, command: Command) -> None:
        """Carry out a command; `hear` tells what comes of it."""
        heard = self._races[number] = _Heard()
        threading.Thread(target=self._carry_out, args=(command, heard), daemon=True).start()

    def _carry_out(self, command: Command, heard: _Heard) -> None:
        try:
            for event in self._host.stream(command, heard.stopped.is_set):
                heard.say(to_json(event))
        finally:
            heard.end()

    def hear(self, number: int) -> tuple[list[Any], bool]:
        """What a command has said since the last time, as JSON values, and whether it has ended;
        waits for that a moment. For one thread at a time.
        """
        events, over = self._races[number].take()
        if over:
            del self._races[number]
        return events, over

    def stop(self, number: int) -> None:
        if (heard := self._races.get(number)) is not None:
            heard.stopped.set()


def _devices(name: str) -> Sequence[str]:
    """What an engine finds here; () if it cannot be asked."""
    try:
        return engines()[name].devices()
    except Exception as error:
        explain(error)
        return ()
