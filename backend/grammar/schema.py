"""A JSON Schema as llguidance is to read it, and the judge of the finished text.

Where llguidance does not know a keyword, or would read one otherwise than the standard does, it
goes without, and the judge, another library, decides on the whole text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from backend.errors import DerbyError

#: Keywords whose values are schemas by name, OpenAPI's `schemas` too, and those whose values are
#: data.
_NAMED = {"properties", "patternProperties", "$defs", "definitions", "schemas", "dependentSchemas"}
_DATA = {"const", "enum", "default", "examples", "example"}

#: Formats that llguidance enforces, and those that the judge knows beside them. All others are
#: annotations, as the standard says.
_ENFORCED_FORMATS = (
    *("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"),
)
_JUDGED_FORMATS = (
    *("idn-email", "idn-hostname", "iri", "iri-reference", "uri-reference", "uri-template"),
    *("json-pointer", "relative-json-pointer", "regex"),
)
#: Keywords that llguidance does not know.
_JUDGED = {
    *("not", "if", "contains", "minContains", "maxContains", "uniqueItems", "propertyNames"),
    *("dependentRequired", "dependentSchemas", "dependencies"),
    *("unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"),
}
#: At most one space, or a line break and an indent, wherever JSON allows white space: a small model
#: that may write one more space for ever will. A schema's own `x-guidance` layout wins.
_WHITESPACE = r" |\r?\n( {0,32}|\t{0,16})"
_LAYOUT_KEYS = {"whitespace_flexible", "whitespace_pattern"}
#: Without \u, which JSON needs for a few control characters alone: a declared name could be
#: spelled with it, as one that is not declared.
_ESCAPES = {"json_allowed_escapes": 'nrbtf\\"'}

#: A look-around, which no mask can follow, without a group in it. A pattern matches more without.
_LOOK_AROUND = re.compile(r"(?<!\\)\(\?<?[=!](?:[^()\[\\]|\\.|\[(?:[^\]\\]|\\.)*+\])*+\)")
#: Between them llguidance's ranges of numbers, which are doubles, are exact and compile.
_SMALLEST, _LARGEST = 1e-30, 2**53
#: llguidance has a state for each remainder.
_LARGEST_DIVISOR = 50_000

Verdict = Literal["valid", "invalid", "unchecked"]
_LONGEST_WHY = 200


@dataclass(frozen=True, slots=True)
class Schema:
    """`value` is llguidance's copy. `afterwards`: the parts that it does not enforce wholly and the
    judge decides, such as "pattern ^(?!a)", in order and once each.
    """

    value: Any
    afterwards: tuple[str, ...] = ()


def read(text: str) -> Schema:
    """A JSON Schema's text for llguidance. Raises ValueError for what is not JSON, DerbyError for
    what nests too deeply.
    """
    afterwards: dict[str, None] = {}
    try:
        value = _enforced(_json(text, float), afterwards.setdefault)
    except RecursionError as error:
        raise DerbyError("The JSON Schema nests too deeply: make it flatter.") from error
    if isinstance(value, dict):
        layout = value.get("x-guidance", {})
        if not isinstance(layout, dict):
            raise DerbyError('The JSON Schema\'s "x-guidance" is no object: leave it out.')
        if _LAYOUT_KEYS.isdisjoint(layout):
            layout = {"whitespace_pattern": _WHITESPACE} | layout
        judged = {"lenient": True, "coerce_one_of": True}  # what it does not know, or not for sure
        value["x-guidance"] = judged | layout | _ESCAPES
    return Schema(value, tuple(afterwards))


def _with_each(schema: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """A copy in which each schema within is changed. What a keyword of nobody's holds may be
    referred to, and counts as schemas.
    """

    def changed(key: str, value: Any) -> Any:
        if key in _DATA:
            return value
        if key in _NAMED and isinstance(value, dict):
            return {name: change(inner) for name, inner in value.items()}
        return [change(inner) for inner in value] if isinstance(value, list) else change(value)

    return {key: changed(key, value) for key, value in schema.items()}


def _enforced(schema: Any, leave: Callable[[str], Any]) -> Any:
    """A schema's copy for llguidance; `leave` is called with each part that the judge decides."""
    if not isinstance(schema, dict):
        return schema
    copy = _with_each(schema, lambda inner: _enforced(inner, leave))
    if isinstance(pattern := copy.get("pattern"), str) and _LOOK_AROUND.search(pattern):
        copy["pattern"] = _LOOK_AROUND.sub("", pattern)
        leave(f"pattern {pattern:.60}")
    for key, value in list(copy.items()):
        if key == "format" and value not in (*_ENFORCED_FORMATS, *_JUDGED_FORMATS):
            del copy[key]
        elif _is_beyond(key, value, copy):
            del copy[key]
            leave(f"{key} {value!s:.60}")
        elif key == "oneOf" or key in _JUDGED:
            leave(key)
    return copy


def _is_beyond(key: str, value: Any, schema: dict[str, Any]) -> bool:
    """Whether llguidance cannot follow this, or not to the letter."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match key:
        case "format":
            return value in _JUDGED_FORMATS
        case "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum":
            return number and value != 0 and not _SMALLEST <= abs(value) < _LARGEST
        case "multipleOf":
            whole = number and (value if value % 1 == 0 else value * 100)
            return number and not (whole % 1 == 0 and 1 <= whole <= _LARGEST_DIVISOR)
        case "minProperties" | "maxProperties":  # it counts where all are required
            names, required = schema.get("properties"), schema.get("required", [])
            if not (isinstance(names, dict) and isinstance(required, list)):
                return False
            return any(name not in required for name in names)
        case _:
            return False


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
