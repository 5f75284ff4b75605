"""Steps in fewer words: what follows from a step's other fields is left out of it.

It goes by the events' JSON form. A step whose shorthand would not read back as it was stays whole.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

Event = dict[str, Any]

#: The kind of a step in shorthand.
SHORT = "step"


def short(event: Event) -> Event:
    """The event in shorthand if it is a step and `long` makes the same of that."""
    if event["kind"] != "Step":
        return event
    made = _short(event)
    try:
        return made if long(made) == event else event
    except ValueError:
        return event


def long(event: Event) -> Event:
    """What `short` was given. Raises KeyError, TypeError or ValueError for other shorthand."""
    if event["kind"] != SHORT:
        return event
    rest = {name: value for name, value in event.items() if name not in _OWN}
    texts, seconds = event["texts"], dict(event["seconds"])
    accepted, drafted = len(texts) - event["forced"] - event["missed"] - 1, event["drafted"]
    if not (0 <= event["forced"] <= len(texts) and 0 <= accepted <= len(texts)):
        raise ValueError("a step is short of tokens")
    origins = _origins(len(texts), event["forced"], accepted, drafted)
    seconds["total"] = float(Decimal(str(seconds.pop("beyond"))) + _sum(seconds.values()))
    return {
        **rest,
        "kind": "Step",
        "origins": origins,
        "spans": [[o, text] for o, text in zip(origins, texts, strict=True) if text],
        "rows": event["more"] + drafted + 1,
        "accepted": accepted,
        "seconds": seconds,
    }


#: Fields of the shorthand alone.
_OWN = {"texts", "forced", "missed", "more"}


def _short(step: Event) -> Event:
    """Of tokens first come the forced ones, then the accepted ones, then the target's own, unless
    that is `missed`: -1 where the text ended before it. `more` are rows beyond the drafted ones and
    the last token's, `beyond` is what the total exceeds its parts by.
    """
    left = {"origins", "spans", "rows", "accepted", "seconds"}
    rest = {name: value for name, value in step.items() if name not in left}
    origins, seconds = step["origins"], dict(step["seconds"])
    total, forced = Decimal(str(seconds.pop("total"))), origins.count("forced")
    return {
        **rest,
        "kind": SHORT,
        "texts": _texts(origins, step["spans"]),
        "forced": forced,
        "missed": len(origins) - forced - step["accepted"] - 1,
        "more": step["rows"] - step["drafted"] - 1,
        "seconds": {**seconds, "beyond": float(total - _sum(seconds.values()))},
    }


def _origins(count: int, forced: int, accepted: int, drafted: int) -> list[str]:
    own = "bonus" if drafted or forced else "sampled"
    return (["forced"] * forced + ["drafted"] * accepted + [own])[:count]


def _texts(origins: Sequence[str], spans: Sequence[Sequence[str]]) -> list[str]:
    """A text for each token: that of the next span if its origin is the token's, else none."""
    texts, waiting = [], list(reversed(spans))
    for origin in origins:
        fits = bool(waiting) and waiting[-1][0] == origin
        texts.append(waiting.pop()[1] if fits else "")
    return texts


def _sum(seconds: Any) -> Decimal:
    return sum((Decimal(str(value)) for value in seconds), Decimal(0))
