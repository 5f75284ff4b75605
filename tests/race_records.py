"""Records for the tests: of races on the fake engine, and of anything that the schema allows."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from hypothesis import strategies as st
from pydantic import TypeAdapter
from race_runs import events_of

from backend.events import Conditions, Event, from_json
from backend.racing.race import Race
from backend.records.file import Document
from backend.records.record import Hardware, RaceRecord, recorded
from backend.strategies.column import Column, default_column, parse_column
from backend.strategies.registry import strategies
from backend.types import ModelSpec, Request, Sampling

FAKE = ModelSpec("fake-loop", "fake", "fp32", "CPU")
MADE = "2026-11-23T10:20:30Z"
DOCUMENT = TypeAdapter(Document).json_schema()

PARTS: dict[str, Any] = DOCUMENT["$defs"]

#: Of each kind of event, what its JSON form must be like.
KINDS = {
    name: part
    for name, part in PARTS.items()
    if "kind" in part.get("properties", {}) and "const" in part["properties"]["kind"]
}


def race_events(request: Request, columns: Sequence[Column]) -> list[Event]:
    """All that happens in a race on the fake engine, on a machine that nobody else uses."""
    events, quiet = events_of(Race(request, tuple(columns), FAKE)), {"others": 0.0}
    return [replace(e, **quiet) if isinstance(e, Conditions) else e for e in events]


@cache
def race_of(names: str, tokens: int = 24, temperature: float = 0.0) -> RaceRecord:
    """The record of such a race."""
    columns = [parse_column(name) for name in names.split()]
    request = Request("Why is it so, why is it", tokens, Sampling(temperature, seed=1))
    return replace(recorded(request, columns, FAKE, race_events(request, columns)), made=MADE)


#: Whatever JSON may hold, and numbers that it may not.
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


def values(part: Any) -> st.SearchStrategy[Any]:
    """Whatever a part of the schema allows, small."""
    if "$ref" in part:
        return values(PARTS[part["$ref"].rpartition("/")[2]])
    if "const" in part:
        return st.just(part["const"])
    if "enum" in part:
        return st.sampled_from(part["enum"])
    if "anyOf" in part:
        return st.one_of([values(each) for each in part["anyOf"]])
    return _MAKERS[part["type"]](part)


def _arrays(part: Any) -> st.SearchStrategy[list[Any]]:
    if "prefixItems" in part:
        return st.tuples(*map(values, part["prefixItems"])).map(list)
    least = part.get("minItems", 0)
    return st.lists(values(part["items"]), min_size=least, max_size=min(part.get("maxItems", 4), 4))


def _objects(part: Any) -> st.SearchStrategy[dict[str, Any]]:
    named = {name: values(each) for name, each in part.get("properties", {}).items()}
    needed = {"kind", *part.get("required", [])} & named.keys()
    objects = st.fixed_dictionaries(
        {name: named[name] for name in needed},
        optional={name: each for name, each in named.items() if name not in needed},
    )
    if "additionalProperties" not in part:
        return objects
    more = values(part["additionalProperties"])
    return st.dictionaries(st.sampled_from(("draft", "mask", "total", "k")), more, max_size=4)


_MAKERS = {
    "integer": lambda part: st.integers(part["minimum"], part.get("maximum", 2**31 - 1)),
    "number": lambda part: st.floats(float(part["minimum"]), float(part["maximum"])),
    "string": lambda part: st.text(max_size=8),
    "boolean": lambda part: st.booleans(),
    "null": lambda part: st.none(),
    "array": _arrays,
    "object": _objects,
}


def _sensible(value: dict[str, Any]) -> dict[str, Any]:
    """The event with lists as long as one another where they must be."""
    if value["kind"] == "CostsKnown":
        widths = sorted(set(value["widths"]))[: len(value["passes"])]
        value |= {"widths": widths, "passes": value["passes"][: len(widths)]}
    if value["kind"] == "Step":
        count = len(value["origins"])
        tokens = value["tokens"][:count]
        value |= {
            "tokens": tokens if len(tokens) == count else [],
            "gaps": value["gaps"][:count],
            "seconds": {"total": 0.5, **value["seconds"]},
        }
    if value["kind"] == "Proposed":
        count = len(value["tokens"])
        value |= {
            "parents": list(range(-1, count - 1)),
            "by": [["lookup", count]] if count else [],
            "path": list(range(count // 2)),
            "cut": 0,
            "allowed": [],
            "top": [],
        }
    return value


#: Any event that a record may hold, of columns 0 to 2.
EVENTS = (
    st.sampled_from(sorted(KINDS))
    .flatmap(lambda kind: values(KINDS[kind]))
    .map(_sensible)
    .map(lambda value: value | ({"column": value["column"] % 3} if "column" in value else {}))
    .map(from_json)
)

COLUMNS = st.sampled_from([default_column(name) for name in strategies()])

RECORDS = st.builds(
    RaceRecord,
    st.builds(
        Request,
        st.text(min_size=1).filter(str.strip),
        st.integers(1, 8192),
        st.builds(Sampling, st.floats(0, 5), seed=st.integers(0, 2**63 - 1)),
        st.booleans(),
        st.lists(st.text(min_size=1), max_size=2).map(tuple),
    ),
    st.tuples(COLUMNS, COLUMNS, COLUMNS),
    st.builds(replace, st.just(FAKE), name=st.text(max_size=9)),
    st.just(MADE),
    st.builds(
        Hardware,
        st.text(max_size=9),
        st.floats(0, 64),
        st.integers(0, 2**53 - 1),
        st.text(max_size=9),
    ),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3).map(
        lambda names: tuple(names.items())
    ),
    st.lists(EVENTS, max_size=12).map(tuple),
)
