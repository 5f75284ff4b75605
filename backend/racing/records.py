"""What a column can be taken up again from: its request as plain JSON, and its answer so far."""

from dataclasses import asdict, replace
from typing import Any

from backend.errors import DerbyError
from backend.grammar.sources import GrammarSource
from backend.results.metrics import Score
from backend.strategies.registry import STRATEGIES, Strategy
from backend.types import AnswerSoFar, ModelSpec, Request, Sampling


def record_of(request: Request, strategy: Strategy, target: ModelSpec) -> dict[str, Any]:
    """JSON values from which `read_record` makes the same again."""
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


def read_record(record: dict[str, Any]) -> tuple[Request, Strategy, ModelSpec]:
    """What `record_of` recorded. Raises DerbyError for anything else."""
    try:
        request = dict(record["request"])
        request["sampling"] = Sampling(**request["sampling"])
        request["stop"] = tuple(request["stop"])
        settings = {
            name: _grammar(value) if isinstance(value, dict) else value
            for name, value in record["settings"].items()
        }
        strategy = STRATEGIES[record["strategy"]].with_settings(settings)
        return Request(**request), strategy, ModelSpec(**record["target"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DerbyError(
            f"The snapshot's record cannot be read ({type(error).__name__}: {error}): save it anew."
        ) from error


def _grammar(record: dict[str, Any]) -> GrammarSource:
    """What `asdict` made of a grammar, and of the files that it imports."""
    modules = tuple(_grammar(module) for module in record.get("modules", ()))
    return GrammarSource(record["kind"], record["text"], record["name"], modules)


def extended(request: Request, strategy: Strategy, tokens: int) -> tuple[Request, Strategy]:
    """The same with `tokens` more to write."""
    more = replace(request, max_new_tokens=request.max_new_tokens + tokens)
    return more, replace(strategy, limit=strategy.limit + tokens if strategy.limit else 0)


def earlier_of(score: Score) -> AnswerSoFar:
    """What a column has written, to go on from."""
    shifts = [(shift.at, shift.sink, shift.dropped) for shift in score.shifts]
    return AnswerSoFar(tuple(score.tokens), tuple(shifts))
