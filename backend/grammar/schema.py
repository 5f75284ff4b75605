"""A JSON Schema as llguidance and the judge are to read it: as the standard does.

Where llguidance reads a keyword otherwise, its copy has other words for the same, or for a little
more, which the judge, another library, decides on the finished text; what neither can express is
refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from math import isinf
from typing import Any, Literal

from backend.errors import DerbyError, invalid_character
from backend.grammar.pattern import translated

#: Keywords whose values are schemas by name, OpenAPI's `schemas` too, and those whose values are
#: data. Remarks forbid nothing, and llguidance does not read some of them.
_NAMED = {"properties", "patternProperties", "$defs", "definitions", "schemas", "dependentSchemas"}
_DATA = {"const", "enum", "default", "examples", "example"}
_UNREAD = {"default", "examples", "example", "deprecated"}
_REMARKS = _UNREAD | {"title", "description", "$comment", "readOnly", "writeOnly"}

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
#: Keywords whose schemas hold for the same value, and so evaluate some of its parts.
_IN_PLACE = {
    *("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"),
}
#: At most one space, or a line break and an indent, wherever JSON allows white space: a small model
#: that may write one more space for ever will. A schema's own `x-guidance` layout wins.
_WHITESPACE = r" |\r?\n( {0,32}|\t{0,16})"
_LAYOUT_KEYS = {"whitespace_flexible", "whitespace_pattern"}
#: Without \u, which JSON needs for a few control characters alone: a declared name could be
#: spelled with it, as one that is not declared.
_ESCAPES = {"json_allowed_escapes": 'nrbtf\\"'}
_CONTROL = re.compile(r"[\x00-\x07\x0B\x0E-\x1F\x7F]")

_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
#: Integers below the first are all doubles; constants below the second are llguidance's integers.
_LARGEST, _LARGEST_CONSTANT = 2**53, 2**63
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
    judge decides, such as 'pattern "^(?!a)"', in order and once each. `open`: an object that names
    properties may have others.
    """

    value: Any
    afterwards: tuple[str, ...] = ()
    open: bool = False


def read(text: str) -> Schema:
    """A JSON Schema's text for llguidance. Raises ValueError for what is not JSON, DerbyError for
    what cannot be honoured.
    """
    afterwards: dict[str, None] = {}
    try:
        value = _enforced(_parsed(text, "JSON Schema"), afterwards.setdefault)
        value = json.loads(json.dumps(value, default=_plain))
        is_open = _is_open(value)
    except RecursionError as error:
        raise DerbyError("The JSON Schema nests too deeply: make it flatter.") from error
    if isinstance(value, dict):
        layout = value.get("x-guidance", {})
        if not isinstance(layout, dict):
            raise DerbyError('The JSON Schema\'s "x-guidance" is no object: leave it out.')
        if "oneOf" in afterwards:
            layout = {"coerce_one_of": True} | layout
        if _LAYOUT_KEYS.isdisjoint(layout):
            layout = {"whitespace_pattern": _WHITESPACE} | layout
        value["x-guidance"] = layout | _ESCAPES
    return Schema(value, tuple(afterwards), is_open)


def _parsed(text: str, what: str) -> Any:
    """JSON with exact numbers. Raises JSONDecodeError, RecursionError, and DerbyError for JSON that
    no library takes; `what` names the text in it.
    """

    def refuse(name: str) -> None:
        raise json.JSONDecodeError(f"No {name} in JSON", text, text.index(name))

    try:
        value = json.loads(text, parse_float=Decimal, parse_constant=refuse)
        json.dumps(value, default=str, ensure_ascii=False).encode()
    except json.JSONDecodeError:
        raise
    except UnicodeEncodeError as error:
        raise DerbyError(
            f"The {what} has half a surrogate pair, such as \\ud83d: write the character itself."
        ) from error
    except (ValueError, ArithmeticError) as error:
        raise DerbyError(f"A number of the {what} is too long: write fewer digits.") from error
    return value


def _plain(number: Decimal) -> int | float:
    """A number for llguidance, to which 2.0 is no count."""
    near = float(number)
    if isinf(near):
        raise DerbyError(f"The JSON Schema's number {_short(number)} is too large: leave it out.")
    return int(near) if near.is_integer() else near


def _is_open(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_is_open, value))
    return isinstance(value, dict) and (
        ("properties" in value and value.get("additionalProperties") is not False)
        or any(map(_is_open, value.values()))
    )


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
        copy["patternProperties"] = _renamed(named, exact)
    return copy


def _renamed(schemas: dict[str, Any], name: Callable[[str], str]) -> dict[str, Any]:
    """Schemas under other names; those whose names are alike hold together."""
    renamed: dict[str, Any] = {}
    for old, schema in schemas.items():
        new = name(old)
        renamed[new] = {"allOf": [renamed[new], schema]} if new in renamed else schema
    return renamed


def _enforced(schema: Any, leave: Callable[[str], Any]) -> Any:
    """A schema's copy for llguidance; `leave` is called with each part that the judge decides."""
    if not isinstance(schema, dict):
        return schema
    copy = _with_each(schema, lambda inner: _enforced(inner, leave))
    for key in copy.keys() & _idle(copy):
        del copy[key]
    if _is_anything(copy.get("not")):
        return False
    _unevaluated(copy)
    for value in (copy.get("const"), copy.get("enum")):
        _check_constant(value)
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
    for key in copy:
        if key == "oneOf" or key in _JUDGED:
            leave(key)
    return copy


def _is_anything(schema: Any, kind: str = "") -> bool:
    """Whether a schema allows every value, or every value of a type."""
    if not isinstance(schema, dict):
        return schema is True
    return all(key in _REMARKS or (key, value) == ("type", kind) for key, value in schema.items())


def _idle(schema: dict[str, Any]) -> set[str]:
    """The keywords that forbid nothing where they stand."""

    def anything(*keys: str, kind: str = "") -> bool:
        return all(_is_anything(schema.get(key, True), kind) for key in keys)

    idle = {
        "uniqueItems": schema.get("uniqueItems") is False,
        "not": schema.get("not") is False,
        "minProperties": schema.get("minProperties") == 0,
        "propertyNames": anything("propertyNames", kind="string"),
        "unevaluatedItems": anything("unevaluatedItems"),
        "unevaluatedProperties": anything("unevaluatedProperties"),
        "if": anything("then", "else"),
        "then": "if" not in schema or anything("then"),
        "else": "if" not in schema or anything("else"),
        "minContains": "contains" not in schema,
        "maxContains": "contains" not in schema,
    }
    for key in ("dependentRequired", "dependentSchemas", "dependencies"):
        parts = schema[key].values() if isinstance(schema.get(key), dict) else [None]
        idle[key] = all(part == [] or _is_anything(part) for part in parts)
    return _UNREAD | {key for key in idle if idle[key]}


def _unevaluated(copy: dict[str, Any]) -> None:
    """Nothing that stands beside them evaluates parts: they are about all that are not named."""
    if _IN_PLACE.isdisjoint(copy):
        if "unevaluatedProperties" in copy:
            copy.setdefault("additionalProperties", copy.pop("unevaluatedProperties"))
        if "unevaluatedItems" in copy and not isinstance(copy.get("items"), list):
            copy.setdefault("items", copy.pop("unevaluatedItems"))


def _number(value: Any) -> Decimal | None:
    number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    return Decimal(value) if number else None


def _is_exact(number: Decimal, largest: int = _LARGEST) -> bool:
    """Whether llguidance, which computes with doubles, takes the number for itself."""
    near = float(number)
    return -largest < number < largest and (near == number or Decimal(repr(near)) == number)


def _check_constant(value: Any) -> None:
    """Raise DerbyError for what llguidance would write otherwise, or not at all."""
    if isinstance(value, list):
        for inner in value:
            _check_constant(inner)
    elif isinstance(value, dict):
        for inner in value.values():
            _check_constant(inner)
    elif isinstance(value, str):
        if control := _CONTROL.search(value):
            raise invalid_character("JSON Schema's constant", value, control.start())
    elif (number := _number(value)) is not None and not _is_exact(number, _LARGEST_CONSTANT):
        raise DerbyError(
            f"The JSON Schema's constant {_short(number)} is no double below 2^63, which is what a "
            "grammar can hold: write it as a string."
        )


def _patterns(copy: dict[str, Any], leave: Callable[[str], Any]) -> None:
    if isinstance(pattern := copy.get("pattern"), str):
        mine = translated(pattern)
        copy["pattern"] = mine.regular
        if mine.partial:
            leave(f'pattern "{pattern}"')
    if isinstance(named := copy.get("patternProperties"), dict):
        for name in named:
            if translated(name).partial:
                raise DerbyError(
                    f'The names "{name}" of patternProperties need look-around, which a grammar '
                    "cannot have: write them without."
                )
        copy["patternProperties"] = _renamed(named, lambda name: translated(name).regular)


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
        if not _is_exact(bound) or 0 < bound.copy_abs() < _SMALLEST:
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
        standard = _judged(_parsed(schema, "JSON Schema"), originals)
        validator = validator_for(
            standard,
            validate_formats=True,
            offline=True,
            # A pattern that gave up would count as one that does not match, and so be valid under
            # `not`. What takes too long meets the child's deadline.
            pattern_options=FancyRegexOptions(backtrack_limit=2**62),
        )
        error = next(iter(validator.iter_errors(_parsed(text, "text"))), None)
    except json.JSONDecodeError as broken:
        return Judgement("invalid", f"not JSON: {broken}")
    except RecursionError:
        return Judgement("unchecked", "it nests too deeply")
    except ValidationError as wrong:
        return Judgement("unchecked", _one_line(f"the schema is wrong: {wrong.message}"))
    except (DerbyError, ValueError, ArithmeticError) as unclear:
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
