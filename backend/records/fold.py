"""A record's events field by field, as a link packs them: alike values stand together, every name
is said once, and a step's total is left out where its parts add up to it.

A list of values that stand at the same place is folded into one of:

- {"which": [...], "shapes": [{name: folded, ...}, ...]}, of objects: what names each one has;
- {"places": [folded, ...]}, of lists that are equally long: their first items, second items, ...;
- {"lengths": [...], "items": folded}, of other lists: all their items in a row;
- the list itself, of anything else.
"""

from collections.abc import Mapping, Sequence
from itertools import chain, islice
from math import fsum
from typing import Any

from backend.records.document import refusal

#: Digits behind the point of a step's total: the clock's own (backend/decoding/digits.py).
_PLACES = 7

#: Characters that a name and a value take in JSON beside the name itself, at least: "":0,
_BESIDE = 5


def fold(events: Sequence[Mapping[str, Any]]) -> Any:
    """JSON values from which `unfold` makes equal events, which are as `to_json` makes them."""
    return _folded([_without_total(event) for event in events])


def unfold(folded: Any, most: int) -> list[Any]:
    """The events of what `fold` made, or JSON values that are no events. Raises DerbyError for
    what nothing is made of, and where objects would have more than `most` characters of JSON.
    """
    try:
        events = _Unfolding(most).values(folded)
        for event in events:
            match event:
                case {"kind": "Step", "seconds": dict(seconds)} if "total" not in seconds:
                    seconds["total"] = _total(seconds)
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        raise refusal("its events do not fit together") from error
    return events


def _without_total(event: Mapping[str, Any]) -> Mapping[str, Any]:
    if event["kind"] != "Step":
        return event
    parts = {name: value for name, value in event["seconds"].items() if name != "total"}
    exact = _total(parts) == event["seconds"]["total"]
    return {**event, "seconds": parts} if exact else event


def _total(parts: Mapping[str, float]) -> float:
    """Seconds; the same with every version of Python."""
    return round(fsum(parts.values()), _PLACES)


def _folded(values: list[Any]) -> Any:
    if values and all(isinstance(value, dict) for value in values):
        alike: dict[tuple[str, ...], list[Any]] = {}
        for value in values:
            alike.setdefault(tuple(value), []).append(value)
        numbers = {names: number for number, names in enumerate(alike)}
        shapes = [
            {name: _folded([value[name] for value in some]) for name in names}
            for names, some in alike.items()
        ]
        return {"which": [numbers[tuple(value)] for value in values], "shapes": shapes}
    if values and all(isinstance(value, list) for value in values):
        lengths = [len(value) for value in values]
        if lengths[0] > 1 and len(set(lengths)) == 1:
            return {"places": [_folded(list(place)) for place in zip(*values, strict=True)]}
        return {"lengths": lengths, "items": _folded(list(chain.from_iterable(values)))}
    return values


class _Unfolding:
    """Makes values of what is folded, whose objects take at most `left` characters of JSON: their
    names alone may come to more than what they are made of.
    """

    def __init__(self, left: int) -> None:
        self._left = left

    def values(self, folded: Any) -> list[Any]:
        match folded:
            case list():
                return folded
            case {"which": [*which], "shapes": [*shapes]}:
                sizes = [sum(len(name) + _BESIDE for name in shape) for shape in shapes]
                self._left -= sum(sizes[number] for number in which)
                if self._left < 0:
                    raise refusal("its events would be too long")
                each = [
                    {name: iter(self.values(shape[name])) for name in shape} for shape in shapes
                ]
                return [
                    {name: next(values, None) for name, values in each[number].items()}
                    for number in which
                ]
            case {"places": [*places]}:
                return [list(row) for row in zip(*map(self.values, places), strict=True)]
            case {"lengths": [*lengths], "items": items}:
                rest = iter(self.values(items))
                return [list(islice(rest, length)) for length in lengths]
            case _:
                raise ValueError("folded in no known way")
