"""A prompt that the columns on one model read once: the time counts for each.

The first one computes it and leaves its rows; the others begin with copies of them, which takes
1-2 % of the time (100 MB of the built-in model's for 2,176 tokens: 0.1-0.2 s in place of 8-21 s).
The last pass, behind which a column writes its first token, is each one's own.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from backend.decoding.digits import rounded
from backend.decoding.loop import Parts
from backend.engines.base import Engine
from backend.events import Event, Prefilled, Step
from backend.types import LAST_LAYER, PREFILL_CHUNK, Arrays, HiddenStates, ModelSpec


@dataclass(slots=True)
class _Reading:
    """The rows behind `tokens`, and of each chunk of these the target's seconds and its hidden
    states [PREFILL_CHUNK, D], None where it shows none.
    """

    tokens: list[int] = field(default_factory=list)
    rows: Arrays = field(default_factory=dict)
    chunks: list[tuple[float, HiddenStates | None]] = field(default_factory=list)


class Readings:
    """What was read in one race, by model; `columns` are the models of the columns that may share.
    Kept until the last of them has begun.
    """

    def __init__(self, columns: Iterable[ModelSpec] = ()) -> None:
        self._coming = Counter(columns)
        self._read: dict[ModelSpec, _Reading] = {}

    def share(
        self,
        column: int,
        prompt: Sequence[int],
        parts: Parts,
        engine: Engine,
        events: Iterator[Event],
    ) -> Iterator[Event]:
        """The events of a column, before the first of which it has read what was read already."""
        spec = engine.spec
        self._coming[spec] -= 1
        reading = self._read.get(spec)
        if self._coming[spec] <= 0:
            self._read.pop(spec, None)
        if not _may_share(parts, engine):
            yield from events
        elif reading is not None and reading.tokens == prompt[: len(reading.tokens)]:
            yield from _begin(column, prompt, parts, reading)
            yield from _counted(events, len(reading.tokens))
        else:
            yield from self._leave(parts, engine, events)

    def _leave(self, parts: Parts, engine: Engine, events: Iterator[Event]) -> Iterator[Event]:
        """The events; what is read meanwhile is left for the columns that have yet to begin."""
        session, clock, reading = parts.session, parts.clock, _Reading()
        for event in events:
            wanted = self._coming[engine.spec] > 0 and engine.spec not in self._read
            if isinstance(event, Prefilled) and wanted:
                shown = engine.guesses != "none"
                seconds = clock.last["total"] - clock.last["draft"]
                reading.chunks.append((seconds, session.hidden_states() if shown else None))
                if event.total - event.done <= PREFILL_CHUNK:
                    reading.tokens = list(session.tokens)
                    reading.rows = session.save(session.length)
                    self._read[engine.spec] = reading
            yield event


def _may_share(parts: Parts, engine: Engine) -> bool:
    """True if the column begins with an empty cache that is cheap to copy, and its draft reads
    nothing of the target that is not copied.
    """
    states = parts.drafter.states
    copied = engine.guesses != "none" and engine.spec.device == "CPU"
    return copied and parts.session.length == 0 and (not states or states.layers == LAST_LAYER)


def _begin(column: int, prompt: Sequence[int], parts: Parts, reading: _Reading) -> Iterator[Event]:
    """Have the column read this: the target's time is as measured, its own draft's is added."""
    clock, drafter = parts.clock, parts.drafter
    parts.session.load(reading.tokens, reading.rows)
    for number, (seconds, states) in enumerate(reading.chunks):
        start = number * PREFILL_CHUNK
        with clock.step(), clock.part("draft"):
            if drafter.states is not None and states is not None:
                drafter.states.add(start, states)
            drafter.prefill(prompt, start + PREFILL_CHUNK)
        clock.seconds += seconds
        took = rounded(seconds + clock.last["total"])
        yield Prefilled(column, start + PREFILL_CHUNK, len(prompt), took)


def _counted(events: Iterator[Event], rows: int) -> Iterator[Event]:
    """The events, with so many more rows in the first step."""
    for event in events:
        if rows and isinstance(event, Step):
            yield replace(event, rows=event.rows + rows)
            rows = 0
        else:
            yield event
