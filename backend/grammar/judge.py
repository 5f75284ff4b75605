"""Whether a finished text is valid under its JSON Schema, by a library other than the one that let
it through. A schema's patterns may take any time: see `check.judge_apart`.
"""

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from backend.errors import DerbyError
from backend.grammar.schema import for_judge

Verdict = Literal["valid", "invalid", "unchecked"]

_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Judgement:
    """`why` a text is not valid, or could not be checked; one line."""

    verdict: Verdict
    why: str = ""


def judge(schema: str, text: str) -> Judgement:
    """Check `text` with a JSON Schema, both given as text. Formats are checked, nothing is fetched,
    and numbers are exact: in binary, 19.99 is not a multiple of 0.01.
    """
    from jsonschema_rs import FancyRegexOptions, ValidationError, validator_for

    try:
        standard, originals = for_judge(schema)
        validator = validator_for(
            standard,
            validate_formats=True,
            offline=True,
            # A pattern that gave up would count as one that does not match, and so be valid under
            # `not`. What takes too long meets the child's deadline.
            pattern_options=FancyRegexOptions(backtrack_limit=2**62),
        )
        error = next(iter(validator.iter_errors(json.loads(text, parse_float=Decimal))), None)
    except json.JSONDecodeError as broken:
        return Judgement("invalid", f"not JSON: {broken}")
    except (DerbyError, ValidationError, ValueError, ArithmeticError, RecursionError) as unclear:
        return Judgement("unchecked", _one_line(str(getattr(unclear, "message", unclear))))
    if error is None:
        return Judgement("valid")
    why = error.message
    for pattern, original in originals.items():
        why = why.replace(f'"{pattern}"', f'"{original}"')
    place = "".join(f"/{step}" for step in error.instance_path)
    return Judgement("invalid", _one_line(f"at {place}: {why}" if place else why))


def _one_line(text: str) -> str:
    return " ".join(text.encode(errors="replace").decode().split()).rstrip(".")[:_LONGEST]
