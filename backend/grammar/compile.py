"""From a grammar's text to a matcher of llguidance's, or to one sentence with its own words."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from backend.errors import DerbyError, invalid_character, unknown
from backend.grammar.schema import read as schema_of
from backend.grammar.sources import GrammarSource, Kind, shipped

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

#: At most one space, or a line break and an indent, wherever JSON allows whitespace: a small model
#: that may write one more space for ever will. A schema's own `x-guidance` layout wins.
JSON_WHITESPACE = r" |\n {0,12}"
_LAYOUT_KEYS = {"whitespace_flexible", "whitespace_pattern"}
#: "%import sql" alone on its line: the rule `sql` is the shipped grammar of that name.
_IMPORT = re.compile(r"(?m)^%import[ \t]+([a-z_]+)[ \t]*\r?$")
#: A name that no grammar of one part has.
_LED = "led"

_TITLES: dict[Kind, str] = {
    "lark": "The grammar",
    "json_schema": "The JSON Schema",
    "regex": "The regular expression",
}
#: "at 3(7): message", or without the "at": line 3, byte column 7.
_PLACE = re.compile(r"\A(?:at )?(\d+)\(\d+\): ")
_LONGEST = 300


@lru_cache(maxsize=64)
def definition_of(source: GrammarSource) -> str:
    """A grammar as llguidance's JSON, so that no text can be taken for another format. Nothing is
    compiled. Raises DerbyError for an import of what does not ship, for what is not JSON, and for
    GBNF.
    """
    match source.kind:
        case "gbnf":
            raise DerbyError("Only llama.cpp takes GBNF: choose its column, or write Lark.")
        case "lark":
            grammar = {"lark_grammar": composed(source.text)}
        case "regex":
            grammar = {"lark_grammar": f"start: {_body(source)}"}
        case "json_schema":
            grammar = {"json_schema": _schema(source)}
    return json.dumps({"grammars": [grammar]})


def led_by(lead: str, definition: str) -> str:
    """The definition of the same texts with `lead` in front of each."""
    (grammar,) = json.loads(definition)["grammars"]
    start = f"start: {json.dumps(lead, ensure_ascii=False)} @{_LED}"
    return json.dumps({"grammars": [{"lark_grammar": start}, {**grammar, "name": _LED}]})


def composed(text: str) -> str:
    """A Lark text with the shipped grammars that it imports, as rules behind its last line, so that
    its own lines keep their numbers. Raises DerbyError for an import of another.
    """
    names = dict.fromkeys(_IMPORT.findall(text))
    for name in names:
        if name not in shipped():
            raise unknown("grammar", name, shipped())
    rules = (f"\n{name}: {_body(shipped()[name])}" for name in names)
    return _IMPORT.sub("", text) + "".join(rules)


def _body(source: GrammarSource) -> str:
    """A grammar as the body of a rule in another one, with its own %ignore."""
    match source.kind:
        case "lark":
            return f"%lark {{\n{composed(source.text)}\n}}"
        case "regex":
            return regex_literal(source.text.rstrip("\r\n"))
        case _:
            return f"%json {json.dumps(_schema(source))}"


def regex_literal(pattern: str) -> str:
    """Write a regular expression as Lark does, between slashes.

    Raises DerbyError for one that ends in half an escape.
    """
    from llguidance import regex_to_lark

    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        raise invalid_character("regular expression", pattern, len(pattern) - 1)
    return f"/{regex_to_lark(pattern)}/"


def _schema(source: GrammarSource) -> Any:
    try:
        schema = schema_of(source.text).value
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise refusal(source, str(error)) from error
    if isinstance(schema, dict):
        layout = schema.get("x-guidance", {})
        if isinstance(layout, dict) and _LAYOUT_KEYS.isdisjoint(layout):
            schema["x-guidance"] = {"whitespace_pattern": JSON_WHITESPACE, **layout}
    return schema


def compile_matcher(definition: str, tokens: LLTokenizer) -> LLMatcher:
    """Make a matcher at the start of a text. Ask it whether it has failed: it never raises.

    The limits are tighter than llguidance's defaults, which trust the grammar; all that ships fits
    easily. Native code runs: see NativeCalls.
    """
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(
        max_items_in_row=1000,
        initial_lexer_fuel=500_000,
        step_lexer_fuel=100_000,
        step_max_items=100_000,
        max_lexer_states=50_000,
        max_grammar_size=100_000,
    )
    return LLMatcher(tokens, definition, log_level=0, limits=limits)


def too_much() -> DerbyError:
    """The error for a grammar that meets a limit of the engine's, or makes it crash."""
    return DerbyError(
        "The grammar takes too much time or memory: simplify it, and give every rule a way to end."
    )


def refusal(source: GrammarSource, printed: str) -> DerbyError:
    """The error with llguidance's own words against a grammar, and the line that they name."""
    place = _PLACE.match(printed)
    where = f" at line {place[1]}" if place and source.kind == "lark" else ""
    words, _, _dump = printed[place.end() if place else 0 :].partition("\n<state>")
    first = words.strip().partition("\n")[0].rstrip(".:")
    inner = re.search(r"(?m)^error: (.+)$", words)  # of a regular expression
    why = inner[1] if inner else first
    return DerbyError(f"{_TITLES[source.kind]} is wrong{where}: {why[:_LONGEST]}.")
