"""A record as one JSON value, checked by the schema beside this file when it is read.

A field that later versions add has a default, so that older records stay what they are; whatever
else changes is a version of its own, with a reader of its own.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from backend.engines.registry import engine_named
from backend.errors import DerbyError
from backend.events import CostsKnown, Event, LoadKnown, Step, from_json, to_json
from backend.grammar.checks.validity import pointer, shortened
from backend.grammar.sources import GrammarSource, shipped
from backend.records.place import Machine
from backend.records.record import RaceRecord
from backend.strategies.column import Column, OwnModel, default_column
from backend.strategies.plain_values import (
    plain_request,
    plain_settings,
    read_request,
    read_settings,
)
from backend.types import MAX_NEW_TOKENS, ModelSpec

if TYPE_CHECKING:
    from jsonschema_rs import Draft4Validator

FORMAT, VERSION = "decode-derby-race", 1
SCHEMA = Path(__file__).with_name("record.schema.json")

Document = dict[str, Any]

#: How JSON escapes what may be half of a pair.
_SURROGATE = re.compile(r"\\ud[89a-f]", re.IGNORECASE)

#: What Python says of values that are of another type, or out of range.
_WRONG = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


def document_of(record: RaceRecord) -> Document:
    """JSON values from which `read_document` makes the same record."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "made": record.made,
        "machine": _plain_machine(record.machine),
        "versions": dict(record.versions),
        "request": plain_request(record.request),
        "target": asdict(record.target),
        "columns": [_plain_column(column) for column in record.columns],
        "events": [to_json(event) for event in record.events],
    }


def read_document(value: Any) -> RaceRecord:
    """The record that this JSON value says. Raises DerbyError for anything else."""
    version = _version(value)
    if version not in tuple(_READERS):  # whatever it is, a dict would want its hash
        known = ", ".join(map(str, _READERS))
        raise DerbyError(
            f"The record is of version {version!r:.20}; this program reads {known}: update the "
            "program."
        )
    with refusing():
        return _READERS[version](value)


def read_json(data: bytes) -> Any:
    """Raises ValueError or RecursionError for what is no JSON in UTF-8, halves of surrogate pairs
    included.
    """
    text = data.decode()
    value = json.loads(text, parse_constant=_refuse)
    if _SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number that JSON has")


@contextmanager
def refusing() -> Iterator[None]:
    """Turn what Python says of wrong values into a DerbyError."""
    try:
        yield
    except DerbyError:
        raise
    except _WRONG as error:
        raise no_record(shortened(str(error)) or type(error).__name__) from error


def no_record(why: str) -> DerbyError:
    """What to raise for anything that is no record."""
    return DerbyError(f"This is no record of a race: {why}; copy or save it anew.")


def _version(value: Any) -> Any:
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise no_record(f'its "format" is not "{FORMAT}"')
    return value.get("version")


def _read_first(value: Document) -> RaceRecord:
    """A record of version 1."""
    _require_schema(value)
    datetime.fromisoformat(value["made"])
    columns = tuple(_read_column(column) for column in value["columns"])
    target = ModelSpec(**value["target"])
    for engine in {target.engine, *(column.model.engine for column in columns)} - {""}:
        engine_named(engine)
    events = tuple(map(from_json, value["events"]))
    for event in events:
        _require_sense(event)
    return RaceRecord(
        read_request(value["request"]),
        columns,
        target,
        value["made"],
        Machine(**value["machine"]),
        tuple(value["versions"].items()),
        events,
    )


_READERS = {1: _read_first}


def _plain_machine(machine: Machine) -> Document:
    """Without the name of one that has none."""
    return {name: value for name, value in asdict(machine).items() if name != "node" or value}


def _plain_column(column: Column) -> Document:
    """A grammar that ships goes by its name: the program's version says which one that was."""
    settings = plain_settings(column)
    for name, value in column.settings().items():
        if isinstance(value, GrammarSource) and shipped().get(value.name) == value:
            settings[name] = value.name
    return {"strategy": column.name, "settings": settings, "model": asdict(column.model)}


def _read_column(value: Mapping[str, Any]) -> Column:
    """A limit may be beyond what a user may set, for a race that goes on sets it."""
    settings, usual = dict(value["settings"]), default_column(value["strategy"])
    limit = int(settings.pop("limit", usual.limit)) if usual.limit else 0
    if usual.limit and not 1 <= limit <= MAX_NEW_TOKENS:
        raise ValueError(f"a token limit of {limit}, and {MAX_NEW_TOKENS} is the most")
    column = read_settings(value["strategy"], settings)
    return column.limited(limit).on(OwnModel(**value["model"]))


@cache
def _validator() -> "Draft4Validator":
    from jsonschema_rs import Draft4Validator

    return Draft4Validator(json.loads(SCHEMA.read_text(encoding="utf-8")), mask="what stands there")


def _require_schema(value: Document) -> None:
    """Raises ValueError with the place of the first flaw."""
    from jsonschema_rs import ValidationError

    try:
        _validator().validate(value)
    except ValidationError as error:
        place = pointer(error.instance_path)
        raise ValueError(f"at {place or 'its root'} {error.message}") from error


def _require_sense(event: Event) -> None:
    """Raises ValueError for what no schema can say of an event's lists."""
    match event:
        case CostsKnown():
            ascending = all(a < b for a, b in pairwise(event.widths))
            if len(event.widths) != len(event.passes) or not ascending:
                raise ValueError("passes cost what no widths are given for")
        case LoadKnown():
            loads = len(event.requests)
            lists = (event.requests, event.widths)
            ascending = all(a < b for found in lists for a, b in pairwise(found))
            widths = {len(event.widths), *map(len, event.passes)}
            if {loads, len(event.passes), len(event.context_slopes)} != {loads} or (
                not ascending or len(widths) > 1 or event.widths[0] != 1
            ):
                raise ValueError("passes under load cost what no requests or widths are given for")
        case Step():
            tokens = len(event.origins)
            if len(event.tokens) not in (0, tokens) or len(event.gaps) > tokens:
                raise ValueError("a step has more tokens, or gaps, than origins")
        case _:
            pass
