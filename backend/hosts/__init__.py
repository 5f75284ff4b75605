"""Where a race runs. The page never cares: a host turns a race into a stream of events."""

from collections.abc import Callable, Iterator
from typing import Protocol

from backend.events import Event
from backend.race import Race


class Host(Protocol):
    def stream(self, race: Race, stopped: Callable[[], bool]) -> Iterator[Event]:
        """Run a race and yield its events; within a second of `stopped()` it ends.

        One race at a time: a second one waits. Every column ends in Finished or Failed.
        """
        ...

    def close(self) -> None: ...
