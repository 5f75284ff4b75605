"""One column's run as the scheduler sees it: events, and a clock where a device is shared."""

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from backend.decoding.clock import Clock
from backend.events import Event
from backend.types import Request


@dataclass(slots=True)
class Lane:
    """One column's run: its events, and the clock that they advance.

    It does its work inside `next(events)`, when the scheduler gives it the turn; once the race is
    stopped it computes nothing more and ends. One that cannot be held runs `alone`, before or after
    the others, on a clock of its own: None is where no event has come for a moment. One that is not
    `ready` loads its model on its first turn, while no clock runs.
    """

    column: int
    events: Iterator[Event | None]
    clock: Clock = field(default_factory=Clock)
    alone: bool = False
    ready: bool = True
    wrote: bool = False  # a token at least


#: Makes the lane of a column that is no loop over a local model, from its number, the request and
#: the values of its settings. Raises DerbyError for what cannot be had.
LaneFactory = Callable[[int, Request, Mapping[str, Any]], Lane]


def polled(
    events: Iterator[Event], leave: Callable[[], object] = lambda: None
) -> Iterator[Event | None]:
    """Read `events`, which may wait, on a thread of its own; None while there is no new one.

    Raises what reading raises. Closing stops the reading at the next event; `leave` is called then,
    so that what is waited for comes to an end.
    """
    queue: SimpleQueue[Event | Exception | None] = SimpleQueue()
    closed = threading.Event()

    def read() -> None:
        try:
            for event in events:
                if closed.is_set():
                    return
                queue.put(event)
            queue.put(None)
        except Exception as error:
            queue.put(error)

    threading.Thread(target=read, name="lane", daemon=True).start()
    try:
        while True:
            try:
                event = queue.get(timeout=0.05)
            except Empty:
                yield None
                continue
            if event is None:
                return
            if isinstance(event, Exception):
                raise event
            yield event
    finally:
        closed.set()
        leave()
