"""What a column can be taken up again from: its request as plain JSON, and its answer so far."""

from dataclasses import asdict
from typing import Any

from backend.errors import DerbyError
from backend.strategies.column import Column
from backend.strategies.plain_values import (
    plain_request,
    plain_settings,
    read_request,
    read_settings,
)
from backend.types import ModelSpec, Request


def record_of(request: Request, column: Column, target: ModelSpec) -> dict[str, Any]:
    """JSON values from which `read_record` makes the same again."""
    return {
        "request": plain_request(request),
        "strategy": column.name,
        "settings": plain_settings(column),
        "target": asdict(target),
    }


def read_record(record: dict[str, Any]) -> tuple[Request, Column, ModelSpec]:
    """What `record_of` recorded. Raises DerbyError for anything else."""
    try:
        column = read_settings(record["strategy"], record["settings"])
        return read_request(record["request"]), column, ModelSpec(**record["target"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DerbyError(
            f"The snapshot's record cannot be read ({type(error).__name__}: {error}): save it anew."
        ) from error
