"""A record as a JSON file in UTF-8, written plainly and read by pydantic: `Document` says its JSON
Schema.
"""

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import FailFast, Field

from backend.engines.registry import engine_named
from backend.errors import DerbyError
from backend.events import Event, Name, to_json
from backend.grammar.sources import GrammarSource, shipped
from backend.records.record import Hardware, RaceRecord
from backend.strategies.column import Column, OwnModel, default_column, settings_of
from backend.types import ModelSpec, Request
from backend.untrusted import Untrusted, UntrustedError, read_json

#: Bytes of a record that are read. Twelve columns of 8,192 tokens, a step and what was proposed in
#: it some 400 bytes for each, are 40 MB; the five most probable tokens of each place are 10 more.
MAX_BYTES = 1 << 27


class ColumnDocument(Untrusted):
    """A column: settings as the command line takes them, or a grammar whole."""

    strategy: Name
    settings: Annotated[dict[Name, Name | GrammarSource], Field(max_length=64)]
    model: OwnModel

    @property
    def column(self) -> Column:
        """Raises DerbyError for what a column cannot have."""
        return default_column(self.strategy).with_settings(self.settings).on(self.model)


class Document(Untrusted):
    """A race of Decode Derby: what was asked, where it ran and what happened. What earlier programs
    wrote besides is passed over.
    """

    format: Literal["decode-derby-race"]
    version: Literal[5]
    made: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z$")]
    machine: Hardware
    versions: Annotated[dict[str, Name], Field(max_length=32)]
    request: Request
    target: ModelSpec
    columns: Annotated[list[ColumnDocument], Field(min_length=1, max_length=12)]
    events: Annotated[
        list[Annotated[Event, Field(discriminator="kind")]], Field(max_length=393_216), FailFast()
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


def as_bytes(record: RaceRecord) -> bytes:
    """The record as JSON, which `from_bytes` reads."""
    values = {
        "format": "decode-derby-race",
        "version": 5,
        "made": record.made,
        "machine": asdict(record.machine),
        "versions": dict(record.versions),
        "request": asdict(record.request),
        "target": asdict(record.target),
        "columns": [_plain_column(column) for column in record.columns],
        "events": [to_json(event) for event in record.events],
    }
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # An error's message may name a path that is no text.
    return text.encode(errors="replace")


def from_bytes(data: bytes) -> RaceRecord:
    """The record that `as_bytes` wrote. Raises DerbyError for anything else, or too many bytes."""
    if len(data) > MAX_BYTES:
        raise DerbyError(
            f"The record is longer than {MAX_BYTES:,} bytes, which is the most that is read: "
            "record a race of fewer columns or tokens."
        )
    try:
        return read_json(Document, data, "it").record
    except UntrustedError as error:
        raise DerbyError(
            f"This is not a record of a race: {error.clause}; record the race again."
        ) from error


def require_folder(path: Path) -> None:
    """Raise DerbyError unless there is a folder for the file: before a race, not behind it."""
    if not path.parent.is_dir() or path.is_dir():
        raise DerbyError(f"{str(path)!r} cannot be written: name another file.")


def save(record: RaceRecord, path: Path) -> None:
    """Write the record to `path`, which is there whole or as it was. Raises DerbyError."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        partial.write_bytes(as_bytes(record))
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise DerbyError(
            f"The record cannot be written to {str(path)!r} ({error.strerror}): name another file."
        ) from error


def load(path: Path) -> RaceRecord:
    """Read a record from `path`. Raises DerbyError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise DerbyError(
            f"The record {str(path)!r} cannot be read ({error.strerror}): name another file."
        ) from error
    return from_bytes(data)


def _plain_column(column: Column) -> dict[str, Any]:
    """All settings by name as the command line takes them; a grammar that does not ship whole."""
    fields, settings = settings_of(column.strategy), dict[str, Any]()
    for name, value in column.settings().items():
        whole = isinstance(value, GrammarSource) and shipped().get(value.name) != value
        settings[name] = asdict(value) if whole else fields[name].text(value)
    return {"strategy": column.name, "settings": settings, "model": asdict(column.model)}
