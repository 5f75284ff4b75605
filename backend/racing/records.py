"""What a column can be taken up again from: its request as plain JSON, and its answer so far."""

from dataclasses import asdict
from typing import Any

from pydantic import BaseModel, ConfigDict

from backend.errors import DerbyError
from backend.grammar.sources import GrammarSource
from backend.records.document import plain_request, plain_settings
from backend.strategies.column import Column, default_column
from backend.types import ModelSpec, Request
from backend.untrusted import UntrustedError, read_as


class _Record(BaseModel):
    """What `record_of` wrote; its grammars whole. A snapshot's also tells of context shifts."""

    model_config = ConfigDict(extra="forbid")

    request: Request
    strategy: str
    settings: dict[str, str | GrammarSource]
    target: ModelSpec
    shifts: list[tuple[int, int, int]] = []


def record_of(request: Request, column: Column, target: ModelSpec) -> dict[str, Any]:
    """JSON values from which `read_record` makes the same again."""
    return {
        "request": plain_request(request),
        "strategy": column.name,
        "settings": plain_settings(column),
        "target": asdict(target),
    }


def read_record(record: dict[str, Any]) -> tuple[Request, Column, ModelSpec]:
    """What `record_of` recorded, and what a snapshot adds. Raises DerbyError for anything else."""
    try:
        read: _Record = read_as(_Record, record, "it")
    except UntrustedError as error:
        raise DerbyError(
            f"The snapshot's record cannot be read ({error.clause}): save it again."
        ) from error
    return read.request, default_column(read.strategy).with_settings(read.settings), read.target
