"""A JSON Schema as llguidance and the judge are to read it: as the standard does.

Where llguidance reads a keyword otherwise, its copy has other words for the same, or for a little
more, which the judge, another library, decides on the finished text; what neither can express is
refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from backend.errors import DerbyError
from backend.grammar.pattern import translated

#: Keywords whose values are schemas by name, and those whose values are data.
_NAMED = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
_DATA = {"const", "enum", "default", "examples", "example"}

#: Formats that llguidance enforces, and those that the judge knows beside them. All others are
#: annotations, as the standard says.
_ENFORCED_FORMATS = {
    *("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"),
}
_JUDGED_FORMATS = {
    *("idn-email", "idn-hostname", "iri", "iri-reference", "uri-reference", "uri-template"),
    *("json-pointer", "relative-json-pointer", "regex"),
}
#: Keywords that llguidance ignores where a schema's `x-guidance` says "lenient", else refuses.
_JUDGED = {
    *("not", "if", "contains", "minContains", "maxContains", "uniqueItems", "propertyNames"),
    *("dependentRequired", "dependentSchemas", "dependencies"),
    *("unevaluatedItems", "unevaluatedProperties"),
}

_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
#: From here on not every integer is a double.
_LARGEST = 2**53
#: Smaller bounds make regular expressions of llguidance's that nest too deeply.
_SMALLEST = Decimal("1e-30")
#: A divisor is a whole number over a power of ten. llguidance has a state for each remainder, and
#: computes with both in 32 bits.
_LARGEST_DIVISOR = 50_000
_MOST_PLACES = 9


Verdict = Literal["valid", "invalid", "unchecked"]
_LONGEST_WHY = 200


@dataclass(frozen=True, slots=True)
class Schema:
    """`value` is llguidance's copy. `afterwards`: the parts that it does not enforce wholly and the
    judge decides, such as 'pattern "^(?!a)"', in order and once each.
    """

    value: Any
    afterwards: tuple[str, ...] = ()


def read(text: str) -> Schema:
    """A JSON Schema's text for llguidance. Raises ValueError, ArithmeticError or RecursionError for
    what is not JSON, DerbyError for what cannot be honoured.
    """
    afterwards: dict[str, None] = {}
    value = _enforced(_parsed(text), afterwards.setdefault)
    if "oneOf" in afterwards and isinstance(layout := value.setdefault("x-guidance", {}), dict):
        layout.setdefault("coerce_one_of", True)
    return Schema(json.loads(json.dumps(value, default=float, allow_nan=False)), tuple(afterwards))


def _parsed(text: str) -> Any:
    def refuse(name: str) -> None:
        raise ValueError(f"JSON has no {name}")

    return json.loads(text, parse_float=Decimal, parse_constant=refuse)


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


def _judged(schema: Any, originals: dict[str, str]) -> Any:
    """A copy with translated patterns, whose originals are noted."""

    def exact(pattern: str) -> str:
        originals[text := translated(pattern).exact] = pattern
        return text

    if not isinstance(schema, dict):
        return schema
    copy = _with_each(schema, lambda inner: _judged(inner, originals))
    if isinstance(pattern := copy.get("pattern"), str):
        copy["pattern"] = exact(pattern)
    if isinstance(named := copy.get("patternProperties"), dict):
        copy["patternProperties"] = {exact(pattern): inner for pattern, inner in named.items()}
    return copy


def _enforced(schema: Any, leave: Callable[[str], Any]) -> Any:
    """A schema's copy for llguidance; `leave` is called with each part that the judge decides."""
    if not isinstance(schema, dict):
        return schema
    copy = _with_each(schema, lambda inner: _enforced(inner, leave))
    for key in copy.keys() & {"default", "examples", "example"}:
        del copy[key]
    for value in (copy.get("const"), copy.get("enum")):
        _check_numbers(value)
    _patterns(copy, leave)
    _counts(copy, leave)
    _bounds(copy, leave)
    name = copy.get("format")
    if isinstance(name, str) and name not in _ENFORCED_FORMATS:
        del copy["format"]
        if name in _JUDGED_FORMATS:
            leave(f"format {name}")
    divisor = _number(copy.get("multipleOf"))
    if divisor is not None and divisor > 0 and not _is_divisor(divisor):
        del copy["multipleOf"]
        leave(f"multipleOf {divisor}")
    if copy.get("uniqueItems") is False:
        del copy["uniqueItems"]
    for key in copy:
        if key == "oneOf" or key in _JUDGED:
            leave(key)
    return copy


def _number(value: Any) -> Decimal | None:
    number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    return Decimal(value) if number else None


def _is_exact(number: Decimal) -> bool:
    """Whether llguidance, which computes with doubles, takes the number for itself."""
    near = float(number)
    return abs(number) < _LARGEST and Decimal(repr(near)) == number


def _check_numbers(value: Any) -> None:
    """Raise DerbyError for a constant with a number that llguidance would write as another."""
    if isinstance(value, list):
        for inner in value:
            _check_numbers(inner)
    elif isinstance(value, dict):
        for inner in value.values():
            _check_numbers(inner)
    elif (number := _number(value)) is not None and not _is_exact(number):
        raise DerbyError(
            f"The JSON Schema's constant {_short(number)} has more digits than the 15 to 17 "
            "that a grammar can hold: write it as a string, or with fewer."
        )


def _patterns(copy: dict[str, Any], leave: Callable[[str], Any]) -> None:
    if isinstance(pattern := copy.get("pattern"), str):
        mine = translated(pattern)
        copy["pattern"] = mine.regular
        if mine.regular != mine.exact:
            leave(f'pattern "{pattern}"')
    if isinstance(named := copy.get("patternProperties"), dict):
        for name in named:
            if translated(name).regular != translated(name).exact:
                raise DerbyError(
                    f'The names "{name}" of patternProperties need look-around, which a grammar '
                    "cannot have: write them without."
                )
        copy["patternProperties"] = {
            translated(name).regular: inner for name, inner in named.items()
        }


def _counts(copy: dict[str, Any], leave: Callable[[str], Any]) -> None:
    named, required = copy.get("properties"), copy.get("required", [])
    if isinstance(named, dict) and isinstance(required, list):
        for key in ("minProperties", "maxProperties"):
            # llguidance counts under this condition only.
            if key in copy and not all(name in required for name in named):
                leave(f"{key} {copy.pop(key)}")


def _bounds(copy: dict[str, Any], leave: Callable[[str], Any]) -> None:
    for key in _BOUNDS:
        bound = _number(copy.get(key))
        if bound is None:
            continue
        if _is_exact(bound) and (bound == 0 or abs(bound) >= _SMALLEST):
            copy[key] = int(bound) if bound == int(bound) else float(bound)
        else:
            del copy[key]
            leave(f"{key} {_short(bound)}")


def _is_divisor(divisor: Decimal) -> bool:
    """Whether llguidance divides by this number: it multiplies doubles by ten up to a whole one."""
    if divisor > _LARGEST_DIVISOR:
        return False
    numerator, places = float(divisor), 0
    while numerator % 1 and places < _MOST_PLACES:
        numerator, places = numerator * 10, places + 1
    return 1 <= numerator <= _LARGEST_DIVISOR and Decimal(numerator).scaleb(-places) == divisor


def _short(number: Decimal) -> str:
    text = str(number)
    return text if len(text) <= 30 else f"{text[:29]}\u2026"


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

    originals: dict[str, str] = {}  # of each translated pattern
    try:
        standard = _judged(_parsed(schema), originals)
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
    return " ".join(text.encode(errors="replace").decode().split()).rstrip(".")[:_LONGEST_WHY]
