"""Where races run: a host runs a race and emits its events, and the page never cares how."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from backend.events import Event, Failed, Finished, failures
from backend.racing.models import LoadedModels
from backend.racing.race import Race

#: Seconds between two looks at whether a race was stopped.
POLL = 0.05

Emit = Callable[[Event], None]
Stopped = Callable[[], bool]


class Host(ABC):
    """Runs one race at a time: a second one waits. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def run(self, race: Race, emit: Emit, stopped: Stopped) -> None:
        """Run a race to its end, or within a second of `stopped()`. Every column ends in Finished
        or Failed, each once, whatever happens. Raises what `emit` raises: the race stops then.
        """
        running, broken = dict.fromkeys(range(len(race.columns))), list[Exception]()

        def note(event: Event) -> None:
            if isinstance(event, Finished | Failed):
                running.pop(event.column, None)
            if not broken:
                try:
                    emit(event)
                except Exception as error:
                    broken.append(error)

        def unwanted() -> bool:
            return bool(broken) or stopped()

        try:
            with self._turn(stopped) as acquired:
                if acquired:
                    self._run(race, note, unwanted)
            ends = [Finished(column, "stopped", []) for column in running]
        except Exception as error:
            ends = failures(running, error)
        for event in ends:
            note(event)
        for error in broken:
            raise error

    @contextmanager
    def _turn(self, stopped: Stopped) -> Iterator[bool]:
        """Hold the lock once it is free; False, without it, if `stopped()` comes first."""
        while not (acquired := self._lock.acquire(timeout=POLL)):
            if stopped():
                break
        try:
            yield acquired
        finally:
            if acquired:
                self._lock.release()

    @abstractmethod
    def _run(self, race: Race, emit: Emit, stopped: Stopped) -> None:
        """Run it, alone. A column without an end was stopped. Raises what fails those."""

    def close(self) -> None:  # noqa: B027 (most hosts have nothing to end)
        """End whatever runs; no race runs afterwards."""


class InlineHost(Host):
    """Runs races on the thread that asks: for the command line, and where no child may start."""

    def __init__(self, models: LoadedModels | None = None) -> None:
        super().__init__()
        self.models = models or LoadedModels()

    def _run(self, race: Race, emit: Emit, stopped: Stopped) -> None:
        race.run(self.models, emit, stopped)
