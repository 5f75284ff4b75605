"""From a grammar's text to what llguidance compiles."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from backend.grammar.gbnf.convert import gbnf_to_lark
from backend.grammar.lark.linking import link
from backend.grammar.lark.text import regex_literal
from backend.grammar.messages import Part, json_error
from backend.grammar.schema.nodes import reached
from backend.grammar.schema.relaxed import relaxed
from backend.grammar.sources import GrammarSource, shipped

#: At most one space, or a line break and an indent, wherever JSON allows whitespace: a small model
#: that may write one more space for ever will. A schema's own `x-guidance` layout wins.
JSON_WHITESPACE = r" |\n {0,12}"
#: A name that linking gives to no part.
_LED = "led"
_LAYOUT_KEYS = {"whitespace_flexible", "whitespace_pattern"}


@lru_cache(maxsize=64)
def parts_of(source: GrammarSource) -> tuple[Part, ...]:
    """Link a grammar with all that it imports, its own files before those that ship.

    Raises DerbyError with file, line and column where they do not fit together.
    """
    own = {module.name: module for module in source.modules}
    return link(source, (shipped() | own).get, _other_than_lark)


def definition(parts: Sequence[Part]) -> str:
    """Write linked parts as llguidance's JSON, so that no text can be taken for another format."""
    return json.dumps({"grammars": [part.grammar for part in parts]})


def definition_of(source: GrammarSource) -> str:
    """A grammar's definition. Of a trusted one: others are linked in the sandbox alone.

    Raises DerbyError as `parts_of` does.
    """
    return definition(parts_of(source))


def led_by(lead: str, definition: str) -> str:
    """The definition of the same texts with `lead` in front of each. Reads no grammar's text."""
    first, *others = json.loads(definition)["grammars"]
    start = f"start: {json.dumps(lead, ensure_ascii=False)} @{_LED}"
    grammars = [{"lark_grammar": start}, {**first, "name": _LED}, *others]
    return json.dumps({"grammars": grammars})


def _other_than_lark(source: GrammarSource, called: str) -> dict[str, Any]:
    """What llguidance takes for a grammar that errors call `called`."""
    match source.kind:
        case "gbnf":
            return {"lark_grammar": gbnf_to_lark(source.text, called)}
        case "regex":
            pattern = source.text.rstrip("\r\n")
            return {"lark_grammar": f"start: {regex_literal(pattern)}"}
        case _:
            return {"json_schema": _schema(source, called)}


def _schema(source: GrammarSource, called: str) -> Any:
    try:
        schema = json.loads(source.text)
        json.dumps(schema, allow_nan=False)
        if source.relax:
            schema = relaxed(schema).schema
    except (ValueError, RecursionError) as error:
        raise json_error(error, called) from error
    for node, _ in reached(schema):
        if isinstance(node, dict) and node.get("uniqueItems") is False:
            del node["uniqueItems"]  # it says nothing, and the engine refuses it
    if not isinstance(schema, dict):
        return schema
    layout = schema.get("x-guidance", {})
    if isinstance(layout, dict) and _LAYOUT_KEYS.isdisjoint(layout):
        schema["x-guidance"] = {"whitespace_pattern": JSON_WHITESPACE, **layout}
    return schema
