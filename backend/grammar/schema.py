"""A JSON Schema as llguidance is to read it, and the judge of the finished text.

llguidance goes without the keywords and formats that it does not know, and names them; the judge,
another library, decides on the whole text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from backend.errors import DerbyError

#: At most one space, or a line break and an indent, wherever JSON allows white space: a small model
#: that may write one more space for ever will. A schema's own `x-guidance` layout wins.
_WHITESPACE = r" |\r?\n( {0,32}|\t{0,16})"
_LAYOUT_KEYS = {"whitespace_flexible", "whitespace_pattern"}
#: Without \u, which JSON needs for a few control characters alone: a declared name could be
#: spelled with it, as one that is not declared.
_ESCAPES = {"json_allowed_escapes": 'nrbtf\\"'}

Verdict = Literal["valid", "invalid", "unchecked"]
_LONGEST_WHY = 200


def read(text: str) -> Any:
    """A JSON Schema's text for llguidance, with its layout. Raises ValueError for what is not JSON,
    DerbyError for what nests too deeply.
    """
    try:
        schema = _json(text, float)
    except RecursionError as error:
        raise DerbyError("The JSON Schema nests too deeply: make it flatter.") from error
    if isinstance(schema, dict):
        layout = schema.get("x-guidance", {})
        if not isinstance(layout, dict):
            raise DerbyError('The JSON Schema\'s "x-guidance" is no object: leave it out.')
        if _LAYOUT_KEYS.isdisjoint(layout):
            layout = {"whitespace_pattern": _WHITESPACE} | layout
        judged = {"lenient": True, "coerce_one_of": True}  # what it does not know, or not for sure
        schema["x-guidance"] = judged | layout | _ESCAPES
    return schema


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
            _json(schema, Decimal),
            validate_formats=True,
            offline=True,
            # A pattern that gave up would count as one that does not match, and so be valid under
            # `not`. What takes too long meets the child's deadline.
            pattern_options=FancyRegexOptions(backtrack_limit=2**62),
        )
        error = next(iter(validator.iter_errors(_json(text, Decimal))), None)
    except json.JSONDecodeError as broken:
        return Judgement("invalid", f"not JSON: {broken}")
    except RecursionError:
        return Judgement("unchecked", "it nests too deeply")
    except ValidationError as wrong:
        return Judgement("unchecked", _one_line(f"the schema is wrong: {wrong.message}"))
    except (ValueError, ArithmeticError) as unclear:
        return Judgement("unchecked", _one_line(str(getattr(unclear, "message", unclear))))
    if error is None:
        return Judgement("valid")
    place = "".join(f"/{step}" for step in error.instance_path)
    return Judgement(
        "invalid", _one_line(f"at {place}: {error.message}" if place else error.message)
    )


def _json(text: str, number: type[float] | type[Decimal]) -> Any:
    """Raises ValueError for what is not JSON, RecursionError for what nests too deeply."""

    def refuse(name: str) -> None:
        raise json.JSONDecodeError(f"No {name} in JSON", text, text.index(name))

    return json.loads(text, parse_float=number, parse_constant=refuse)


def _one_line(text: str) -> str:
    return " ".join(text.encode(errors="replace").decode().split()).rstrip(".")[:_LONGEST_WHY]
