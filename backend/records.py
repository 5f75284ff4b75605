"""A column's request as plain JSON, for snapshots: what was asked, of which model, which way."""

from dataclasses import asdict, replace
from typing import Any

from backend.grammars import GrammarSource
from backend.strategies import STRATEGIES, Strategy
from backend.types import DerbyError, ModelSpec, Request, Sampling


def record_of(request: Request, strategy: Strategy, target: ModelSpec) -> dict[str, Any]:
    """JSON values from which `asked` makes the same again."""
    settings = {
        name: asdict(value) if isinstance(value, GrammarSource) else value
        for name, value in strategy.settings().items()
    }
    return {
        "request": asdict(request),
        "strategy": strategy.name,
        "settings": settings,
        "target": asdict(target),
    }


def asked(record: dict[str, Any]) -> tuple[Request, Strategy, ModelSpec]:
    """What `record_of` recorded. Raises DerbyError for anything else."""
    try:
        request = dict(record["request"])
        request["sampling"] = Sampling(**request["sampling"])
        request["stop"] = tuple(request["stop"])
        settings = {
            name: GrammarSource(**value) if isinstance(value, dict) else value
            for name, value in record["settings"].items()
        }
        strategy = STRATEGIES[record["strategy"]].with_settings(settings)
        return Request(**request), strategy, ModelSpec(**record["target"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DerbyError(
            f"The snapshot's record cannot be read ({type(error).__name__}: {error}): save it anew."
        ) from error


def longer(request: Request, strategy: Strategy, tokens: int) -> tuple[Request, Strategy]:
    """The same with `tokens` more to write."""
    more = replace(request, max_new_tokens=request.max_new_tokens + tokens)
    return more, replace(strategy, limit=strategy.limit + tokens if strategy.limit else 0)
