"""The fair-share interleaver: the column whose own clock is lowest moves next, for a short turn.

All columns have had equal compute at any moment, to within a turn, so the race on the screen is the
real race in slow motion, and a column's own clock never sees another column.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

from backend.decoding.clock import Clock
from backend.errors import explain
from backend.events import Event, Failed, Finished, Step, failures

#: An engine that has just computed another number of rows for another column is slower for one
#: pass (by 2-3 ms of 18 on the OpenVINO CPU plugin). A turn of a few steps shares that out, and is
#: still shorter than a prefill chunk.
TURN = 0.06


@dataclass(slots=True, eq=False)
class Lane:
    """One column's run. It does its work inside `next(events)`, when it has the turn; once the race
    is stopped it computes nothing more and ends. One that runs `alone` does so before the others,
    from its first turn to its end. None is where no event has come for a moment. `wrote`: it has
    written a token.
    """

    column: int
    events: Generator[Event | None]
    clock: Clock
    alone: bool = False
    wrote: bool = False


def interleave(
    lanes: Sequence[Lane], stopped: Callable[[], bool], turn: float = TURN
) -> Iterator[Event]:
    """Merge the lanes' events: `turn` seconds of a lane's own time at a time, one step at least. A
    lane's first turn, on which its model is loaded, lasts until it has written its first token: who
    watches sees that when one column has read the prompt, not when all have.

    A lane that raises fails alone, with a sentence. Once `stopped()` is true every lane ends as
    "stopped": one that has written ends by itself, with the text that it had held back. All lanes
    are closed in the end, come what may.
    """
    running, lane, began, stopping = list(lanes), None, 0.0, False
    try:
        while running:
            if not stopping and stopped():
                stopping = True
                yield from (
                    Finished(lane.column, "stopped", []) for lane in running if not lane.wrote
                )
                running = [lane for lane in running if lane.wrote]
                continue
            over = lane and not lane.alone and lane.wrote and lane.clock.seconds - began >= turn
            if lane not in running or over:
                lane = min(running, key=lambda lane: (not lane.alone, lane.clock.seconds))
                began = lane.clock.seconds
            try:
                event = next(lane.events)
            except Exception as error:
                (event,) = failures((lane.column,), error)
            if lane.clock.running:
                raise RuntimeError("a column's clock ran while its lane was not on turn")
            lane.wrote |= isinstance(event, Step)
            if isinstance(event, Failed | Finished):
                # Now, not on its next turn: a stop in between would end the lane a second time.
                running.remove(lane)
                _close(lane)
            if event is not None:
                yield event
    finally:
        for lane in lanes:
            _close(lane)


def _close(lane: Lane) -> None:
    """Release what the lane holds; an error there is logged and concerns no other lane."""
    try:
        lane.events.close()
    except Exception as error:
        explain(error)
