"""A prompt that the columns on one model read once: the time counts for each.

The first one computes it and leaves its rows; the others begin with copies of them, which takes
1-2 % of the time (100 MB of the built-in model's for 2,176 tokens: 0.1-0.2 s in place of 8-21 s).
The last pass, behind which a column writes its first token, is each one's own.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from backend.decoding.clock import rounded
from backend.decoding.loop import Parts
from backend.engines.base import Engine
from backend.events import Prefilled
from backend.types import LAST_LAYER, PREFILL_CHUNK, Arrays, HiddenStates, ModelSpec


@dataclass(slots=True)
class Reading:
    """The rows behind `tokens`, and of each chunk of these the target's seconds and its hidden
    states [PREFILL_CHUNK, D]. Without tokens: it has not come to the last pass.
    """

    tokens: list[int] = field(default_factory=list)
    rows: Arrays = field(default_factory=dict)
    chunks: list[tuple[float, HiddenStates]] = field(default_factory=list)

    def add(self, event: Prefilled, parts: Parts) -> None:
        """Take what the pass behind `event` computed."""
        session, seconds = parts.session, parts.clock.last
        self.chunks.append((seconds["total"] - seconds["draft"], session.hidden_states()))
        if event.total - event.done <= PREFILL_CHUNK:
            self.rows, self.tokens = session.save(session.length), list(session.tokens)

    def copied(self, column: int, prompt: Sequence[int], parts: Parts) -> Iterator[Prefilled]:
        """Have a column read this: the target's time is as measured, its own draft's is added."""
        clock, drafter = parts.clock, parts.drafter
        parts.session.load(self.tokens, self.rows)
        for number, (seconds, states) in enumerate(self.chunks):
            start = number * PREFILL_CHUNK
            with clock.step(), clock.part("draft"):
                if drafter.states is not None:
                    drafter.states.add(start, states)
                drafter.prefill(prompt, start + PREFILL_CHUNK)
            clock.seconds += seconds
            both = rounded(seconds + clock.last["total"])
            yield Prefilled(column, start + PREFILL_CHUNK, len(prompt), both)


class Readings:
    """What was read in one race, by model, until the last of the columns on it has begun; `columns`
    are the models of those that take turns.
    """

    def __init__(self, columns: Iterable[ModelSpec] = ()) -> None:
        self._coming = Counter(columns)
        self._read: dict[ModelSpec, Reading] = {}

    def begin(self, prompt: Sequence[int], parts: Parts, engine: Engine) -> Reading | None:
        """What a column is to begin with, or to leave for others; None: it reads for itself, as it
        holds something already, copies are not cheap, or its draft reads what is not copied.
        """
        spec, states = engine.spec, parts.drafter.states
        self._coming[spec] -= 1
        reading, others = self._read.get(spec), self._coming[spec] > 0
        if not others:
            self._read.pop(spec, None)
        copied = engine.guesses != "none" and spec.device == "CPU" and parts.session.length == 0
        if not copied or (states and states.layers != LAST_LAYER):
            return None
        if reading is not None and reading.tokens:
            return reading if reading.tokens == prompt[: len(reading.tokens)] else None
        return self._read.setdefault(spec, Reading()) if others and reading is None else None
