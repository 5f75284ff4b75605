"""What a column can be taken up again from: its request as plain JSON, and its answer so far."""

from dataclasses import asdict
from typing import Any

from backend.errors import DerbyError
from backend.grammar.sources import GrammarSource
from backend.strategies.column import Column, default_column, settings_of
from backend.types import ModelSpec, Request, Sampling


def record_of(request: Request, column: Column, target: ModelSpec) -> dict[str, Any]:
    """JSON values from which `read_record` makes the same again."""
    fields = settings_of(column.strategy)
    settings = {
        name: asdict(value) if isinstance(value, GrammarSource) else fields[name].text(value)
        for name, value in column.settings().items()
    }
    return {
        "request": asdict(request),
        "strategy": column.name,
        "settings": settings,
        "target": asdict(target),
    }


def read_record(record: dict[str, Any]) -> tuple[Request, Column, ModelSpec]:
    """What `record_of` recorded. Raises DerbyError for anything else."""
    try:
        request = dict(record["request"])
        request["sampling"] = Sampling(**request["sampling"])
        request["stop"] = tuple(request["stop"])
        settings = {
            name: _grammar(value) if isinstance(value, dict) else value
            for name, value in record["settings"].items()
        }
        column = default_column(record["strategy"]).with_settings(settings)
        return Request(**request), column, ModelSpec(**record["target"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DerbyError(
            f"The snapshot's record cannot be read ({type(error).__name__}: {error}): save it anew."
        ) from error


def _grammar(record: dict[str, Any]) -> GrammarSource:
    """What `asdict` made of a grammar, and of the files that it imports."""
    modules = tuple(_grammar(module) for module in record.get("modules", ()))
    return GrammarSource(record["kind"], record["text"], record["name"], modules)
