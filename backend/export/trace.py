"""A race as a trace that Perfetto and Chrome's about:tracing draw: a process a column, on its own
clock, with a lane for each part of its steps.

The form is Chrome's Trace Event Format: complete events ("X"), times in microseconds. Within a step
the parts follow one another; a mask that was computed while the forward pass ran is none of them,
for nothing waited for it.
"""

import json
from collections.abc import Iterator
from typing import Any

from backend.events import Event, Prefilled, Step
from backend.records.record import RaceRecord, board
from backend.records.timeline import timeline
from backend.results.scoreboard import Scoreboard

#: The lanes, by the part of a step that is drawn there, in the order of a step.
LANES = {"draft": "draft", "mask": "mask", "forward": "forward", "rest": "verify and the rest"}

_PARTS = list(LANES)

Traced = dict[str, Any]


def trace(record: RaceRecord) -> str:
    """The trace as JSON."""
    made = board(record)
    drawn = [*_names(made), *(each for at, e in timeline(record) for each in _drawn(at, e))]
    return json.dumps({"traceEvents": drawn, "displayTimeUnit": "ms"}, separators=(",", ":"))


def _names(made: Scoreboard) -> Iterator[Traced]:
    """What the processes and their lanes are called."""
    for column in range(len(made.columns)):
        yield _named("process_name", column, 0, made.name(column))
        for lane, title in enumerate(LANES.values()):
            yield _named("thread_name", column, lane, title)


def _named(what: str, column: int, lane: int, name: str) -> Traced:
    return {"ph": "M", "name": what, "pid": column, "tid": lane, "args": {"name": name}}


def _drawn(at: float, event: Event) -> Iterator[Traced]:
    """What an event shows that ended when the column's clock stood at `at`."""
    match event:
        case Step():
            yield from _step(at, event)
        case Prefilled():
            done = {"done": event.done, "total": event.total}
            yield _slice("prefill", "forward", at - event.seconds, event.seconds, event, done)
        case _:
            seconds = getattr(event, "seconds", 0.0)
            if seconds:
                name = type(event).__name__.lower()
                yield _slice(name, "rest", at - seconds, seconds, event, {})


def _step(at: float, step: Step) -> Iterator[Traced]:
    """The parts of a step. If the parts are unknown, all of the step counts as rest."""
    told = {
        "rows": step.rows,
        "tokens": len(step.origins),
        "drafted": step.drafted,
        "accepted": step.accepted,
    }
    begin = at - step.seconds["total"]
    parts = {part: step.seconds[part] for part in _PARTS if part in step.seconds}
    for part, seconds in (parts or {"rest": step.seconds["total"]}).items():
        if seconds:
            yield _slice(part, part, begin, seconds, step, told)
        begin += seconds


def _slice(
    name: str, part: str, begin: float, seconds: float, event: Any, told: dict[str, Any]
) -> Traced:
    return {
        "ph": "X",
        "name": name,
        "pid": event.column,
        "tid": _PARTS.index(part),
        "ts": round(begin * 1e6, 1),
        "dur": round(seconds * 1e6, 1),
        "args": told,
    }
