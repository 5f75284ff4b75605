"""Boards of columns that are made up event by event, for the tests of what is said of them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from backend.events import Event, Finished, Repeated, Started, Step
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Origin

SPEC = asdict(ModelSpec())


#: For so long that there is an interval.
LONG = [[i] for i in range(1, 61)]
LONG_PAIRS = [[i, i + 1] for i in range(1, 61, 2)]


def started(column: int, **spec: str) -> Started:
    """A column on the built-in model, or on what `spec` names instead."""
    return Started(column, 5, "one tokenizer", SPEC | spec)


def step(
    column: int,
    tokens: Sequence[int],
    total: float,
    accepted: int = 0,
    *,
    gap: float = 1.0,
    **more: Any,
) -> Step:
    """One step that took `total` seconds, all of them in the forward pass."""
    parts = {"total": total, "draft": 0.0, "mask": 0.0, "forward": total, "rest": 0.0}
    origins: list[Origin] = ["drafted" if i < accepted else "sampled" for i in range(len(tokens))]
    spans = [[origin, chr(97 + token)] for origin, token in zip(origins, tokens, strict=True)]
    gaps = [gap] * len(tokens)
    event = Step(column, list(tokens), origins, gaps, spans, 1, accepted, accepted, parts)
    return replace(event, **more)


def written(
    column: int, blocks: Sequence[Sequence[int]], cost: float, spec: Mapping[str, str] | None = None
) -> list[Event]:
    """A whole column: a first token after one second, then blocks at `cost` seconds each."""
    steps: list[Event] = [step(column, [0], 1.0)]
    steps += [step(column, block, cost, len(block) - 1) for block in blocks]
    return [started(column, **(spec or {})), *steps, Finished(column, "token limit", [])]


def again(column: int, blocks: Sequence[Sequence[int]], cost: float) -> Repeated:
    """Another run of a column that wrote these blocks behind its first token."""
    return Repeated(column, [cost] * len(blocks), list(map(len, blocks)))


def board_of(names: str, *events: Event) -> Scoreboard:
    """A board of the columns named, after these events."""
    return Scoreboard([parse_column(name) for name in names.split()], events)


def drawn_steps(drawn: dict[str, Any], column: int) -> list[Any]:
    return [json.loads(line) for line in drawn["columns"][column]["steps"].splitlines()]


def amount(steps: list[Any], moment: float) -> float:
    """What a column had at a moment, as the board draws it."""
    at, had = 0.0, 0.0
    for seconds, behind, _, _ in steps:
        if seconds > moment:
            return had + (behind - had) * (moment - at) / (seconds - at)
        at, had = seconds, behind
    return had
