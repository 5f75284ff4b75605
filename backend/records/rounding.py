"""A record with its steps' times in fewer digits, for where there is little room."""

from collections import defaultdict
from dataclasses import replace
from math import floor, log10

from backend.events import Event, Step
from backend.records.record import RaceRecord

#: Seconds of each column's parts of steps that are still to be told.
Owed = defaultdict[tuple[int, str], float]


def rounded(record: RaceRecord, digits: int) -> RaceRecord:
    """The record with each step's times rounded to so many digits of the whole step. What rounding
    takes from a part of one step, the column's next one gets: over several steps all stay true.
    """
    owed: Owed = defaultdict(float)
    return replace(record, events=tuple(_rounded(event, digits, owed) for event in record.events))


def _rounded(event: Event, digits: int, owed: Owed) -> Event:
    """The event rounded; `owed` is brought up to date."""
    if not isinstance(event, Step) or event.seconds["total"] <= 0:
        return event
    places = digits - 1 - floor(log10(event.seconds["total"]))
    parts = {name: value for name, value in event.seconds.items() if name != "total"}
    beyond = event.seconds["total"] - sum(parts.values())
    told: dict[str, float] = {}
    for name, value in {**parts, "total": beyond}.items():
        due = value + owed[event.column, name]
        told[name] = max(0.0, round(due, places))
        owed[event.column, name] = due - told[name]
    total = round(sum(told.values()), places)
    return replace(event, seconds={name: told[name] for name in event.seconds} | {"total": total})
