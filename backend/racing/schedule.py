"""The fair-share interleaver: the column whose own clock is lowest moves next, for a short turn.

All columns have had equal compute at any moment, to within a turn, so the race on the screen is the
real race in slow motion, and a column's own clock never sees another column.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from backend.decoding.lane import Lane
from backend.errors import explain
from backend.events import CUT_SHORT, Event, Failed, Finished, Step, failures

#: An engine that has just computed another number of rows for another column is slower for one
#: pass (by 2-3 ms of 18 on the OpenVINO CPU plugin). A turn of a few steps shares that out, and is
#: still shorter than a prefill chunk.
TURN = 0.06


@dataclass
class PhotoFinish:
    """The first end of a lane that `finishes`, in seconds of its own clock behind its first token;
    inf: none has ended.
    """

    seconds: float = inf

    def ends(self, lane: Lane) -> bool:
        """True if the lane is to write no more."""
        return lane.ends_early and lane.decoding >= self.seconds


def interleave(
    lanes: Sequence[Lane],
    stopped: Callable[[], bool],
    turn: float = TURN,
    finish: PhotoFinish | None = None,
) -> Iterator[Event]:
    """Merge the lanes' events: `turn` seconds of a lane's own time at a time, one step at least. A
    lane's first turn lasts until it has written its first token: who watches sees that when one
    column has read the prompt, not when all have. A lane that is not ready has its turn when those
    that are have written their first tokens, which then wait until it has caught up. The ends of
    lanes that finish move `finish`; a lane that stops because it has come to that says so.

    A lane that raises fails alone, with a sentence. Once `stopped()` is true every lane ends as
    "stopped": one that has written ends by itself, with the text that it had held back. All lanes
    are closed in the end, come what may.
    """
    running, finish = list(lanes), finish or PhotoFinish()
    lane, began = None, 0.0
    try:
        while running and not stopped():
            if lane not in running or (lane.wrote and lane.clock.seconds - began >= turn):
                lane = _next(running)
                began = lane.clock.seconds
            yield from _advance(lane, running, finish)
        for each in tuple(running):
            while each.wrote and each in running:
                yield from _advance(each, running, finish)
        for each in running:
            yield Finished(each.column, "stopped", [])
    finally:
        for each in lanes:
            _close(each)


def _next(running: Sequence[Lane]) -> Lane:
    """Whose turn it is."""
    waiting = [lane for lane in running if not lane.ready]
    silent = [lane for lane in running if lane.ready and not lane.wrote]
    among = silent or waiting if waiting else running
    return min(among, key=lambda lane: lane.clock.seconds)


def _advance(lane: Lane, running: list[Lane], finish: PhotoFinish) -> Iterator[Event]:
    """The lane's next event, if there is one; a lane that has ended runs no more."""
    ended = False
    try:
        event = next(lane.events)
    except StopIteration:
        event, ended = None, True
    except Exception as error:
        (event,) = failures((lane.column,), error)
    if lane.clock.running:
        raise RuntimeError("a column's clock ran while its lane was not on turn")
    if ended or isinstance(event, Failed | Finished):
        # Now, not on its next turn: a stop in between would end the lane a second time.
        running.remove(lane)
        _close(lane)
    if isinstance(event, Step) and not lane.wrote:
        lane.first_token = lane.clock.seconds
    if isinstance(event, Finished):
        if event.reason == "stopped" and finish.ends(lane):
            event = replace(event, reason="photo finish")
        if event.reason not in CUT_SHORT and lane.finishes and lane.wrote:
            finish.seconds = min(finish.seconds, lane.decoding)
    if event is not None:
        yield event


def _close(lane: Lane) -> None:
    """Release what the lane holds; an error there is logged and concerns no other lane."""
    close = getattr(lane.events, "close", None)
    if close is None:
        return
    try:
        close()
    except Exception as error:
        explain(error)
