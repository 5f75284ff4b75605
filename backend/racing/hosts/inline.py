"""Runs races in this process, on a thread: for the command line, and where no child may start."""

import threading
from collections.abc import Callable, Iterator, Mapping
from queue import SimpleQueue
from types import MappingProxyType

from backend.events import Event
from backend.limits import PRIVATE, Limits
from backend.models.files import give_titles
from backend.racing.commands import Command, all_stopped, run_to_end
from backend.racing.hosts.host import held
from backend.racing.models import LoadedModels


class InlineHost:
    """`limits` and `titles` are as ProcessHost's."""

    preparing = ""

    def __init__(
        self, limits: Limits = PRIVATE, titles: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        give_titles(titles)
        self.engines = LoadedModels(limits=limits)
        self._one_at_a_time = threading.Lock()

    def stream(self, command: Command, stopped: Callable[[], bool]) -> Iterator[Event]:
        queue: SimpleQueue[Event | None] = SimpleQueue()
        gone = threading.Event()

        def ended() -> bool:
            return gone.is_set() or stopped()

        def run() -> None:
            try:
                with held(self._one_at_a_time, ended) as mine:
                    if mine:
                        run_to_end(command, self.engines, queue.put, ended)
                    else:
                        for event in all_stopped(command):
                            queue.put(event)
            finally:
                queue.put(None)

        threading.Thread(target=run, name="race", daemon=True).start()
        try:
            while (event := queue.get()) is not None:
                yield event
        finally:
            gone.set()

    def close(self) -> None: ...
