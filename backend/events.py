"""What happens in a race, as plain values: ints, floats, strings and lists, with a JSON round trip.

Every event names its column by index; the page, the command line, the bench and recordings all
read this one stream.
"""

from dataclasses import asdict, dataclass, fields
from math import inf
from typing import Any, Literal

Reason = Literal["end of text", "stop string", "token limit", "column limit", "stopped"]


@dataclass(frozen=True, slots=True)
class Preparing:
    """The race waits for something: a download, a conversion, a model being loaded."""

    text: str


@dataclass(frozen=True, slots=True)
class Started:
    """The column's session is open; decoding begins. `model` says what runs where."""

    column: int
    prompt_tokens: int
    model: str


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A chunk of the prompt was computed: `done` of `total` tokens, in `seconds`."""

    column: int
    done: int
    total: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of the loop: one target forward pass, and what it committed.

    tokens, origins, gaps: one entry per committed token; a gap is the distance between the two
    best scores there. spans: [origin, text] pairs that became showable. rows: token rows
    computed since the last step. drafted, accepted: proposed tokens offered to and passed by
    verification. seconds: total, draft, mask, forward, rest.
    """

    column: int
    tokens: list[int]
    origins: list[str]
    gaps: list[float]
    spans: list[list[str]]
    rows: int
    drafted: int
    accepted: int
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class Finished:
    """The column ended in order. `spans` is text that had been held back."""

    column: int
    reason: Reason
    spans: list[list[str]]


@dataclass(frozen=True, slots=True)
class Failed:
    """The column ended with an error, told in one sentence."""

    column: int
    message: str


Event = Preparing | Started | Prefilled | Step | Finished | Failed

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Preparing, Started, Prefilled, Step, Finished, Failed)
}


def to_json(event: Event) -> dict[str, Any]:
    """A dict of plain JSON values, with the event's kind under "kind".

    A gap without a runner-up is infinite, which JSON cannot say: it becomes null.
    """
    value = {"kind": type(event).__name__, **asdict(event)}
    if isinstance(event, Step):
        value["gaps"] = [gap if gap < inf else None for gap in event.gaps]
    return value


def from_json(value: Any) -> Event:
    """The event that `to_json` made this dict from. Raises ValueError for anything else."""
    kind = _KINDS.get(str(value.get("kind"))) if isinstance(value, dict) else None
    if kind is None or set(value) != {"kind", *(f.name for f in fields(kind))}:
        raise ValueError(f"not an event: {value!r:.200}")
    arguments = {name: v for name, v in value.items() if name != "kind"}
    if kind is Step:
        arguments["gaps"] = [inf if gap is None else gap for gap in arguments["gaps"]]
    return kind(**arguments)
