"""A recorded race over time: when each event was there, on its column's own clock."""

import time
from collections.abc import Callable, Iterable, Iterator
from math import inf

from backend.events import Event
from backend.records.record import RaceRecord
from backend.results.metrics import Score


def timeline(record: RaceRecord) -> list[tuple[float, Event]]:
    """Every event, and the seconds on its column's own clock by then, the earliest first. What
    belongs to no column comes last, at infinity.
    """
    scores = [Score() for _ in record.columns]
    moments = [(_clock(scores, event), event) for event in record.events]
    return sorted(moments, key=lambda moment: moment[0])


def _clock(scores: list[Score], event: Event) -> float:
    """The column's clock once the event is added to its score."""
    column = getattr(event, "column", None)
    if column is None:
        return inf
    scores[column].add(event)
    return scores[column].seconds


def paced(
    moments: Iterable[tuple[float, Event]],
    speed: float,
    now: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[Event]:
    """The events, each when its time has come: `speed` seconds of the columns' clocks a second; 0:
    at once. The columns run beside each other, as if each had a machine of its own.
    """
    begun = now()
    for at, event in moments:
        left = at / speed - (now() - begun) if speed and at < inf else 0.0
        if left > 0:
            wait(left)
        yield event
