"""The fair-share interleaver: the column whose own clock is lowest moves next, one step at a time.

All columns have had equal compute at any moment, so the race on the screen is the real race in
slow motion, and a column's own clock never sees another column.
"""

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from backend.clock import Clock
from backend.events import Event, Failed, Finished
from backend.types import DerbyError

log = logging.getLogger(__name__)


@dataclass
class Lane:
    """One column's run: its events, produced step by step, and the clock they advance."""

    column: int
    events: Iterator[Event]
    clock: Clock


def interleave(lanes: Sequence[Lane], stopped: Callable[[], bool]) -> Iterator[Event]:
    """Merge the lanes' events. A lane that raises fails alone, with a sentence; once `stopped()`
    is true every lane ends as "stopped". All lanes are closed in the end, come what may.
    """
    running = list(lanes)
    with ExitStack() as closing:
        for lane in lanes:
            closing.callback(getattr(lane.events, "close", _nothing))
        while running and not stopped():
            lane = min(running, key=lambda lane: lane.clock.seconds)
            try:
                event = next(lane.events, None)
            except Exception as error:
                event = Failed(lane.column, explain(error))
            if lane.clock.running:
                raise RuntimeError("a column's clock ran while its lane was not on turn")
            # Not one turn later: a stop in between would end the lane a second time.
            if event is None or isinstance(event, Failed | Finished):
                running.remove(lane)
            if event is not None:
                yield event
        for lane in running:
            yield Finished(lane.column, "stopped", [])


def _nothing() -> None:
    """Stands in for `close` where a lane's events are no generator."""


def explain(error: BaseException) -> str:
    """One sentence for the user; anything that is not theirs to fix is logged with a reference."""
    if isinstance(error, DerbyError):
        return str(error)
    reference = secrets.token_hex(4)
    log.error("internal error %s", reference, exc_info=error)
    return (
        f"Something broke here, not in your input ({type(error).__name__}, reference {reference})."
    )
