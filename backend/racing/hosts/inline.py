"""Runs races in this process, on a thread: for the command line, and where no child may start."""

import threading
from collections.abc import Iterator, Mapping
from queue import SimpleQueue
from types import MappingProxyType

from backend.events import Event
from backend.limits import PRIVATE, Limits
from backend.models.files import give_titles
from backend.racing.hosts.host import Command, Stopped, one_at_a_time, run_to_end, with_ends
from backend.racing.models import LoadedModels


class InlineHost:
    """`limits` and `titles` are as ProcessHost's."""

    def __init__(
        self, limits: Limits = PRIVATE, titles: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        give_titles(titles)
        self.models = LoadedModels(limits=limits)
        self._lock = threading.Lock()

    def stream(self, command: Command, stopped: Stopped) -> Iterator[Event]:
        """See Host. A pass that runs when nobody listens any more keeps the lock to its end."""
        queue: SimpleQueue[Event | None] = SimpleQueue()
        abandoned = threading.Event()

        def unwanted() -> bool:
            return abandoned.is_set() or stopped()

        def run() -> None:
            with one_at_a_time(self._lock, unwanted) as acquired:
                if acquired:
                    run_to_end(command, self.models, queue.put, unwanted)
                else:
                    for event in with_ends(command, None):
                        queue.put(event)
            queue.put(None)

        threading.Thread(target=run, name="race", daemon=True).start()
        try:
            yield from iter(queue.get, None)
        finally:
            abandoned.set()

    def close(self) -> None: ...
