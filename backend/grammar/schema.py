"""The judge of a finished text by its JSON Schema: llguidance goes without the keywords and formats
that it does not know, and names them; another library decides on the whole text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

Verdict = Literal["valid", "invalid", "unchecked"]
_LONGEST_WHY = 200


@dataclass(frozen=True, slots=True)
class Judgement:
    """`why` a text is not valid, or could not be checked; one line."""

    verdict: Verdict
    why: str = ""


def judge(schema: str, text: str) -> Judgement:
    """Check `text` with a JSON Schema, both given as text. Formats are checked, nothing is fetched,
    and numbers are exact: in binary, 19.99 is not a multiple of 0.01. A schema's patterns may take
    any time: see `check.judge_apart`.
    """
    from jsonschema_rs import FancyRegexOptions, ValidationError, validator_for

    try:
        validator = validator_for(
            _json(schema),
            validate_formats=True,
            offline=True,
            # A pattern that gave up would count as one that does not match, and so be valid under
            # `not`. What takes too long meets the child's deadline.
            pattern_options=FancyRegexOptions(backtrack_limit=2**62),
        )
        error = next(iter(validator.iter_errors(_json(text))), None)
    except json.JSONDecodeError as broken:
        return Judgement("invalid", f"not JSON: {broken}")
    except (ValidationError, ValueError, ArithmeticError, RecursionError) as unclear:
        return Judgement("unchecked", _one_line(str(getattr(unclear, "message", unclear))))
    if error is None:
        return Judgement("valid")
    place = "".join(f"/{step}" for step in error.instance_path)
    return Judgement(
        "invalid", _one_line(f"at {place}: {error.message}" if place else error.message)
    )


def _json(text: str) -> Any:
    """Raises ValueError for what is not JSON, RecursionError for what nests too deeply."""

    def refuse(name: str) -> None:
        raise json.JSONDecodeError(f"No {name} in JSON", text, text.index(name))

    return json.loads(text, parse_float=Decimal, parse_constant=refuse)


def _one_line(text: str) -> str:
    return " ".join(text.encode(errors="replace").decode().split()).rstrip(".")[:_LONGEST_WHY]
