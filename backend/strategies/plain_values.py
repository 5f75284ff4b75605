"""A request, and what a column has set, as plain JSON values, and back."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from backend.grammar.sources import GrammarSource
from backend.strategies.column import Column, default_column, settings_of
from backend.types import Request, Sampling

#: Fields that are left out where they are as usual: neither page nor command line sets them.
_UNSAID: Mapping[str, Any] = {"turns": [], "tags": True}


def plain_request(request: Request) -> dict[str, Any]:
    """JSON values from which `read_request` makes the same again."""
    turns = [list(turn) for turn in request.turns]
    value = {**asdict(request), "stop": list(request.stop), "turns": turns}
    return {name: each for name, each in value.items() if _UNSAID.get(name) != each}


def read_request(value: Mapping[str, Any]) -> Request:
    """Raises DerbyError for a request that is refused; KeyError, TypeError for no request."""
    sampling, stop = Sampling(**value["sampling"]), tuple(value["stop"])
    turns = tuple((role, text) for role, text in value.get("turns", ()))
    return Request(**{**value, "sampling": sampling, "stop": stop, "turns": turns})


def plain_settings(column: Column) -> dict[str, Any]:
    """All settings by name as the command line takes them; a grammar whole."""
    fields = settings_of(column.strategy)
    return {
        name: asdict(value) if isinstance(value, GrammarSource) else fields[name].text(value)
        for name, value in column.settings().items()
    }


def read_settings(strategy: str, settings: Mapping[str, Any]) -> Column:
    """The column of that strategy with these settings. Raises DerbyError for what it cannot have;
    KeyError, TypeError, AttributeError for no settings.
    """
    values = {
        name: _grammar(value) if isinstance(value, dict) else value
        for name, value in settings.items()
    }
    return default_column(strategy).with_settings(values)


def _grammar(value: Mapping[str, Any]) -> GrammarSource:
    """What `asdict` made of a grammar, and of the files that it imports."""
    modules = tuple(_grammar(module) for module in value.get("modules", ()))
    return GrammarSource(
        value["kind"], value["text"], value["name"], modules, value.get("relax", False)
    )
