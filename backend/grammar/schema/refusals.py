"""Finds the part of a JSON Schema that the grammar engine refuses, and says what to write
instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from backend.grammar.schema.nodes import as_dict, inside, reached

#: What the engine has no grammar for, and what says nearly the same.
KEYWORDS = {
    "if": "write the cases as 'anyOf'",
    "then": "write the cases as 'anyOf'",
    "else": "write the cases as 'anyOf'",
    "not": "say what is allowed, by 'enum', 'type' or 'pattern'",
    "uniqueItems": "leave it out, or bound the number of items",
    "contains": "require the items by 'prefixItems'",
    "minContains": "leave it out",
    "maxContains": "leave it out",
    "propertyNames": "write 'patternProperties' and '\"additionalProperties\": false'",
    "dependentRequired": "write the cases as 'anyOf'",
    "dependentSchemas": "write the cases as 'anyOf'",
    "dependencies": "write the cases as 'anyOf'",
    "unevaluatedProperties": "write 'additionalProperties', beside all 'properties'",
    "unevaluatedItems": "write 'items', behind all 'prefixItems'",
    "$dynamicRef": "write '$ref'",
    "$recursiveRef": "write '$ref'",
}
#: The formats that it has a grammar for.
FORMATS = "date, time, date-time, duration, email, hostname, ipv4, ipv6, uri, uuid"

_UNIMPLEMENTED = re.compile(r"Unimplemented keys: (\[.*\])")
_OUTSIDE = re.compile(r"Resource '(?:json-schema:///)?(?P<what>.*?)' is not present.*", re.DOTALL)
#: The engine's words, and ours with a remedy.
_REASONS = (
    (
        re.compile("oneOf constraints are not supported.*", re.DOTALL),
        (
            "one value may meet two branches of 'oneOf': tell them apart by a required property, "
            "another 'const' in each, or write 'anyOf'"
        ),
    ),
    (
        re.compile(r"Unknown format: (?P<what>.*)", re.DOTALL),
        (
            f"the format {{what!r}} has no grammar: leave it out or write a 'pattern' (known are "
            f"{FORMATS})"
        ),
    ),
    (
        re.compile(r"min/maxProperties only supported .*", re.DOTALL),
        (
            "'minProperties' and 'maxProperties' need all 'properties' to be in 'required': leave "
            "them out, or require all"
        ),
    ),
    (
        re.compile(r"patternProperty regexes (?P<what>.*) are not disjoint"),
        (
            "one name may match two of 'patternProperties', {what}: begin each with '^' and let "
            "them differ, or join them"
        ),
    ),
    (
        _OUTSIDE,
        "the '$ref' to {what!r} points outside the schema: copy its target into '$defs'",
    ),
    (
        re.compile(r"Pointer '(?P<what>.*)' does not exist", re.DOTALL),
        "the '$ref' to '#{what}' points to nothing: define its target, or correct it",
    ),
    (
        re.compile(r"invalid multiple of.*", re.DOTALL),
        "'multipleOf' is not above zero: correct it, or leave it out",
    ),
    (
        re.compile(r"regex parse error:\n {4}(?P<what>.*)\n.*\nerror: (?P<why>.*)", re.DOTALL),
        "{why} in the regular expression {what!r}: write it without",
    ),
    (
        re.compile(r"lookarounds not supported yet; .* in regex /(?P<what>.*?)/?", re.DOTALL),
        (
            r"the regular expression {what!r} uses lookaround, such as \b, ^ or $ inside it: "
            "write it without lookaround"
        ),
    ),
    (
        re.compile(r"Invalid type: (?P<what>.*)", re.DOTALL),
        "there is no type {what!r}: write string, number, integer, boolean, null, array or object",
    ),
    (
        re.compile(r"Unsatisfiable schema: (?P<what>.*)", re.DOTALL),
        "no JSON can meet it ({what}): require less of it",
    ),
)


def refusal(schema: Any, printed: str) -> tuple[str, str] | None:
    """JSON pointer and reason, with a remedy, for what the engine `printed` about a schema; None if
    these words never refuse a schema alone. The engine names no place, so it is asked about the
    parts: each part on the way down, and each of its siblings, once.
    """
    printed = _core(printed)
    if _asked(schema, schema) != printed:
        return None
    if outside := _OUTSIDE.fullmatch(printed):
        # It reads all references first, also those that a part does not lead to.
        refs = ((as_dict(node).get("$ref"), where) for node, where in reached(schema))
        places = [where for ref, where in refs if isinstance(ref, str) and ref in outside[0]]
        return (places or ["#"])[0], _reason(printed)
    at, pointer = schema, "#"
    seen = {id(schema)}
    while below := next(_guilty(schema, at, pointer, printed, seen), None):
        at, pointer = below
    return pointer, _reason(printed)


def _guilty(
    root: Any, node: Any, pointer: str, printed: str, seen: set[int]
) -> Iterator[tuple[Any, str]]:
    """The parts of a node that are refused in the same words, which are not asked about again."""
    for inner, where in inside(root, node, pointer):
        if id(inner) not in seen:
            seen.add(id(inner))
            if _asked(root, inner) == printed:
                yield inner, where


def said_against(schema: Any) -> str:
    """What the engine prints against a schema, "" if nothing. Native code runs."""
    from llguidance import LLMatcher

    return LLMatcher.validate_grammar(json.dumps({"grammars": [{"json_schema": schema}]}))


def _asked(root: Any, part: Any) -> str:
    """What the engine says against a part of the document `root`, "" if nothing."""
    if isinstance(part, dict):
        shared = ("$schema", "$id", "$defs", "definitions")
        part = {key: as_dict(root)[key] for key in shared if key in as_dict(root)} | part
    return _core(said_against(part))


def _core(printed: str) -> str:
    """The engine's words without the reference on the way, keywords sorted: their order varies."""
    printed = re.split(r"\s+while processing ", printed, maxsplit=1)[0]
    if found := _UNIMPLEMENTED.fullmatch(printed):
        return f"Unimplemented keys: {json.dumps(sorted(json.loads(found[1])))}"
    return printed


def _reason(printed: str) -> str:
    if found := _UNIMPLEMENTED.match(printed):
        keys: list[str] = json.loads(found[1])
        remedies = dict.fromkeys(KEYWORDS.get(key, "leave it out") for key in keys)
        named = " and ".join(map(repr, keys))
        return f"the grammar engine cannot enforce {named}: {'; '.join(remedies)}"
    for words, ours in _REASONS:
        if found := words.fullmatch(printed):
            return ours.format(**{name: text[:80] for name, text in found.groupdict().items()})
    return printed
