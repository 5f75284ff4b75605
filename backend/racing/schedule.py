"""The fair-share interleaver: the column whose own clock is lowest moves next, for a short turn.

All columns have had equal compute at any moment, to within a turn, so the race on the screen is the
real race in slow motion, and a column's own clock never sees another column.
"""

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from backend.decoding.clock import Clock
from backend.errors import DerbyError
from backend.events import Event, Failed, Finished

#: An engine that has just computed another number of rows for another column is slower for one
#: pass (by 2-3 ms of 18 on the OpenVINO CPU plugin). A turn of a few steps shares that out, and is
#: still shorter than a prefill chunk.
TURN = 0.06

log = logging.getLogger(__name__)


@dataclass
class Lane:
    """One column's run: its events, produced step by step, and the clock they advance."""

    column: int
    events: Iterator[Event]
    clock: Clock


def interleave(
    lanes: Sequence[Lane], stopped: Callable[[], bool], turn: float = TURN
) -> Iterator[Event]:
    """Merge the lanes' events, `turn` seconds of a lane's own time at a time, one step at least.

    A lane that raises fails alone, with a sentence; once `stopped()` is true every lane ends as
    "stopped". All lanes are closed in the end, come what may.
    """
    running = list(lanes)
    lane, until = None, 0.0
    try:
        while running and not stopped():
            if lane not in running or lane.clock.seconds >= until:
                lane = min(running, key=lambda lane: lane.clock.seconds)
                until = lane.clock.seconds + turn
            try:
                event = next(lane.events, None)
            except Exception as error:
                event = Failed(lane.column, explain(error))
            if lane.clock.running:
                raise RuntimeError("a column's clock ran while its lane was not on turn")
            if event is None or isinstance(event, Failed | Finished):
                # Now, not on its next turn: a stop in between would end the lane a second time.
                running.remove(lane)
                _close(lane)
            if event is not None:
                yield event
        for lane in running:
            yield Finished(lane.column, "stopped", [])
    finally:
        for lane in lanes:
            _close(lane)


def _close(lane: Lane) -> None:
    """Release what the lane holds; an error there is logged and concerns no other lane."""
    close = getattr(lane.events, "close", None)
    if close is None:
        return
    try:
        close()
    except Exception as error:
        explain(error)


def explain(error: BaseException) -> str:
    """One sentence for the user; anything that is not theirs to fix is logged with a reference."""
    if isinstance(error, DerbyError):
        return str(error)
    reference = secrets.token_hex(4)
    log.error("internal error %s", reference, exc_info=error)
    return (
        f"Something broke here, not in your input ({type(error).__name__}, reference {reference})."
    )
