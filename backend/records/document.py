"""A record as JSON, written plainly and read by pydantic: `record.schema.json` is made of what
stands here and in the events (`python -m backend.records`).

A field that later versions add has a default, so that older records stay what they are; whatever
else changes is a version of its own, with a reader of its own.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    TypeAdapter,
)

from backend.engines.registry import engine_named
from backend.errors import DerbyError
from backend.events import Event, Name, to_json
from backend.grammar.sources import GrammarSource, shipped
from backend.records.place import Hardware
from backend.records.record import LEFT_OUT, RaceRecord
from backend.strategies.column import Column, OwnModel, default_column, settings_of
from backend.types import ModelSpec, Request
from backend.untrusted import UntrustedError, read_json

FORMAT, VERSION = "decode-derby-race", 1
SCHEMA = Path(__file__).with_name("record.schema.json")

#: JSON values that a record may hold. Twelve columns of 8,192 tokens, each in a step of its own of
#: some 60 values, what was proposed in it included, are six million.
MAX_VALUES = 1 << 23

#: Fields of a request that are left out where they are as usual: neither page nor command line sets
#: them.
_UNSAID: Mapping[str, Any] = {"turns": [], "tags": True}

#: What a record may tell of: all events but LEFT_OUT.
if TYPE_CHECKING:
    Told = Event
else:
    Told = reduce(or_, (kind for kind in get_args(Event) if kind not in LEFT_OUT))

#: The form is fixed so that dates sort as texts do; whether there is such a day Python knows.
Moment = Annotated[
    str,
    Field(pattern=r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z$"),
    AfterValidator(lambda text: datetime.fromisoformat(text) and text),
]


def _known_version(version: Any) -> Any:
    """Raises DerbyError for a later one."""
    if isinstance(version, int) and version > VERSION:
        raise DerbyError(
            f"The record is of version {version!r:.20}; this program reads {VERSION}: update the "
            "program."
        )
    return version


class Strict(BaseModel):
    """Values are of the very type, numbers finite, and nothing stands there that is not known; of
    the dataclasses within it too.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class ColumnDocument(Strict):
    """A column: settings as the command line takes them, or a grammar whole."""

    strategy: Name
    settings: Annotated[dict[Name, Name | GrammarSource], Field(max_length=64)]
    model: OwnModel

    @property
    def column(self) -> Column:
        """Raises DerbyError for what a column cannot have."""
        return default_column(self.strategy).with_settings(self.settings).on(self.model)


class Document(Strict):
    """A race of Decode Derby: what was asked, where it ran and what happened."""

    format: Literal["decode-derby-race"]
    version: Annotated[Literal[1], BeforeValidator(_known_version)]
    check: Annotated[str, Field(pattern="^[0-9a-f]{8}$")] = ""
    made: Moment
    machine: Hardware
    versions: Annotated[dict[str, Name], Field(max_length=32)]
    request: Request
    target: ModelSpec
    columns: Annotated[list[ColumnDocument], Field(min_length=1, max_length=12)]
    events: Annotated[
        list[Annotated[Told, Field(discriminator="kind")]], Field(max_length=393_216), FailFast()
    ]

    @property
    def record(self) -> RaceRecord:
        """Raises DerbyError for settings that no column has."""
        columns = tuple(each.column for each in self.columns)
        for engine in {self.target.engine, *(each.model.engine for each in columns)} - {""}:
            engine_named(engine)
        return RaceRecord(
            self.request,
            columns,
            self.target,
            self.made,
            self.machine,
            tuple(self.versions.items()),
            tuple(self.events),
        )


def document_of(record: RaceRecord) -> dict[str, Any]:
    """JSON values from which `read_document` makes the same record."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "made": record.made,
        "machine": asdict(record.machine),
        "versions": dict(record.versions),
        "request": plain_request(record.request),
        "target": asdict(record.target),
        "columns": [_plain_column(column) for column in record.columns],
        "events": [to_json(event) for event in record.events],
    }


def write_document(record: RaceRecord) -> bytes:
    """The record as JSON in UTF-8."""
    return write_values(document_of(record))


def write_values(values: Mapping[str, Any]) -> bytes:
    """JSON values as JSON in UTF-8. Raises ValueError for a number that JSON has not."""
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # An error's message may name a path that is no text.
    return text.encode(errors="replace")


def read_document(data: bytes) -> RaceRecord:
    """The record that this JSON says. Raises DerbyError for anything else. The bytes are the
    caller's to bound.
    """
    try:
        return read_json(Document, data, "it", MAX_VALUES).record
    except UntrustedError as error:
        raise refusal(error.clause) from error


def refusal(why: str) -> DerbyError:
    """What to raise for anything that is no record."""
    return DerbyError(f"This is not a record of a race: {why}; copy or save it again.")


def schema() -> str:
    """The JSON Schema of a record: what the file beside this one holds."""
    return json.dumps(TypeAdapter(Document).json_schema(), indent=1) + "\n"


def plain_request(request: Request) -> dict[str, Any]:
    """JSON values from which pydantic makes the same request."""
    value = _request().dump_python(request, mode="json")
    return {name: each for name, each in value.items() if _UNSAID.get(name) != each}


def plain_settings(column: Column) -> dict[str, Any]:
    """All settings by name as the command line takes them; a grammar whole."""
    fields = settings_of(column.strategy)
    return {
        name: asdict(value) if isinstance(value, GrammarSource) else fields[name].text(value)
        for name, value in column.settings().items()
    }


@cache
def _request() -> TypeAdapter[Request]:
    return TypeAdapter(Request)


def _plain_column(column: Column) -> dict[str, Any]:
    """A grammar that ships goes by its name: the program's version says which one that was."""
    settings = plain_settings(column)
    for name, value in column.settings().items():
        if isinstance(value, GrammarSource) and shipped().get(value.name) == value:
            settings[name] = value.name
    return {"strategy": column.name, "settings": settings, "model": asdict(column.model)}
