"""Runs races in this process, on a thread: for the command line, and where no child may start."""

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

from backend.engines import Engines
from backend.events import Event, Failed
from backend.race import Race, run_race
from backend.schedule import explain


class InlineHost:
    def __init__(self) -> None:
        self.engines = Engines()
        self._one_at_a_time = threading.Lock()

    def stream(self, race: Race, stopped: Callable[[], bool]) -> Iterator[Event]:
        queue: SimpleQueue[Event | None] = SimpleQueue()
        gone = threading.Event()

        def run() -> None:
            try:
                with self._one_at_a_time:
                    run_race(race, self.engines, queue.put, lambda: gone.is_set() or stopped())
            except Exception as error:
                sentence = explain(error)
                for column in range(len(race.columns)):
                    queue.put(Failed(column, sentence))
            finally:
                queue.put(None)

        threading.Thread(target=run, name="race", daemon=True).start()
        try:
            while (event := queue.get()) is not None:
                yield event
        finally:
            gone.set()

    def close(self) -> None: ...
