"""What is wrong with a grammar, in one sentence, from what llguidance prints."""

import json
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from backend.errors import DerbyError
from backend.grammar.schema.refusals import refusal, said_against
from backend.grammar.sources import GrammarSource, Kind

TITLES: dict[Kind, str] = {
    "lark": "The grammar",
    "json_schema": "The JSON Schema",
    "regex": "The regular expression",
    "gbnf": "The GBNF grammar",
}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a line that linking added comes from: a file's title, and where the text is there."""

    title: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Part:
    """One of the grammars that llguidance is given, and the file that it comes from. The main
    grammar has no name. The lines of a Lark file keep their numbers and columns; `added` says where
    each line after them came from.
    """

    name: str
    grammar: dict[str, Any]
    source: GrammarSource
    added: tuple[Origin, ...] = ()

    @property
    def title(self) -> str:
        """How an error names the file."""
        return title(self.source, imported=bool(self.name))

    @property
    def text(self) -> str:
        """The Lark text as llguidance sees it; empty for a JSON Schema."""
        return self.grammar.get("lark_grammar", "")


#: "at 3(7): message", or without the "at": line 3, byte column 7.
_PLACE = re.compile(r"\A(?:at )?(\d+)\((\d+)\): ")
#: "    pattern\n    ^^^\nerror: message": an error inside a regular expression.
_IN_REGEX = re.compile(r"(?m)^ {4}(?P<pattern>.*)\n {4}(?P<pad> *)\^+.*\nerror: (?P<why>.+)$")
_IN_JSON = re.compile(r'failed to parse "%json": (?P<why>.+) at line (\d+) column (\d+)')
#: "   3 | the third line": what llguidance shows of the text.
_SNIPPET = re.compile(r"(?m)^ *(\d+) \| ([^\r\n]*)")
#: What it says against a schema inside Lark, before it shows the text.
_IN_SCHEMA = re.compile(r"failed to compile JSON schema: (.*?)\n +\d+ \| ", re.DOTALL)
_LONGEST = 300


def title(source: GrammarSource, *, imported: bool) -> str:
    """How an error names a grammar: an imported file is called by its name."""
    return f"{TITLES[source.kind]} {source.name!r}" if imported else TITLES[source.kind]


def explain(printed: str, parts: Sequence[Part]) -> DerbyError:
    """The error for `printed`, llguidance's own words against linked parts; it names the file that
    is wrong. Line and column count characters from 1.
    """
    place = _PLACE.match(printed)
    part = _guilty(parts, printed)
    if found := _in_schema(part, printed):
        return found
    why, where = _reason(printed, place), ""
    match part.source.kind:
        case "lark" if place:
            line, column = int(place[1]), int(place[2])
            rows = part.source.text.split("\n")
            if line <= len(rows):
                column = _character(rows[line - 1], column, why)
            return fault(part, line, column, why)
        case "lark" if in_json := _IN_JSON.match(printed):
            place_in_json = int(in_json[2]), int(in_json[3])
            where, why = _inline_json_place(part.source.text, *place_in_json), in_json["why"]
        case "gbnf" if place:
            where = f" at line {place[1]}"
        case "regex" if in_regex := _IN_REGEX.search(printed):
            where, why = _regex_place(part.source.text, in_regex), in_regex["why"]
        case _:
            pass
    return _error(part.title, where, why)


def _in_schema(part: Part, printed: str) -> DerbyError | None:
    """The error with the place in a JSON Schema, or one inside Lark; None if it is not of one."""
    if "json_schema" in part.grammar:
        found = refusal(part.grammar["json_schema"], printed)
        return _error(part.title, f" at {found[0]}", found[1]) if found else None
    if not (said := _IN_SCHEMA.search(printed)):
        return None
    for mark in re.finditer("%json", part.text):
        try:
            schema, _ = json.JSONDecoder().raw_decode(part.text[mark.end() :].lstrip())
        except (ValueError, RecursionError):
            continue
        if found := refusal(schema, said[1]):
            line = part.text.count("\n", 0, mark.start()) + 1
            column = mark.start() - part.text.rfind("\n", 0, mark.start())
            return fault(part, line, column, f"{found[1]} (at {found[0]} of the JSON Schema)")
    return None


def fault(part: Part, line: int, column: int, why: str) -> DerbyError:
    """The error for a fault at a line and column, in characters, of a part's `text`."""
    if part.source.kind != "lark":
        return _error(part.title, f" at line {line}" if part.source.kind == "gbnf" else "", why)
    added = line - 2 - part.source.text.count("\n")
    if 0 <= added < len(part.added):
        origin = part.added[added]
        return _error(origin.title, _at(origin.line, origin.column), why)
    return _error(part.title, _at(line, column), why)


def _reason(printed: str, place: re.Match[str] | None) -> str:
    if in_regex := _IN_REGEX.search(printed):
        return f"{in_regex['why']} in the regular expression {in_regex['pattern']!r}"
    return _plainer(printed[place.end() :] if place else printed)


def _guilty(parts: Sequence[Part], printed: str) -> Part:
    """The part that llguidance complains of: the one with the lines that it shows."""
    if shown := _SNIPPET.findall(printed):
        for part in parts:
            lines = [line.rstrip("\r") for line in part.text.split("\n")]
            if all(int(n) <= len(lines) and lines[int(n) - 1] == line for n, line in shown):
                return part
    elif in_json := _IN_JSON.match(printed):
        at = int(in_json[2]), int(in_json[3])
        return next((p for p in parts if p.text and _inline_json_place(p.text, *at)), parts[0])
    elif len(parts) > 1:  # of a JSON Schema no lines are shown
        schemas = (part for part in parts if "json_schema" in part.grammar)
        return next((p for p in schemas if said_against(p.grammar["json_schema"])), parts[0])
    return parts[0]


def json_error(
    error: ValueError | RecursionError, called: str = TITLES["json_schema"]
) -> DerbyError:
    """The error for a JSON Schema that is not JSON; `called` is its file's title."""
    if isinstance(error, json.JSONDecodeError):
        return _error(called, _at(error.lineno, error.colno), f"not JSON: {error.msg}")
    if isinstance(error, RecursionError):
        return _error(called, "", "it is nested too deeply")
    return _error(called, "", "a number in it is too large, or not a JSON number")


def wrong(called: str, line: int, column: int, why: str) -> DerbyError:
    """The error for a fault that we found ourselves, in the file of that title."""
    return _error(called, _at(line, column), why)


def _error(called: str, place: str, why: str) -> DerbyError:
    why = re.sub(r"\s+", " ", why).strip().rstrip(".")
    why = why if len(why) <= _LONGEST else why[:_LONGEST] + "..."
    return DerbyError(f"{called} is wrong{place}: {why or 'no reason is known'}.")


def _at(line: int, column: int) -> str:
    return f" at line {line}, column {column}"


def _plainer(text: str) -> str:
    """The first line, without what refers to llguidance's own copy of the text."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    line = re.sub(r" \(at \".*| at line \d+ column \d+$", "", line)
    if line == "lexer error":
        return "this cannot be read as Lark (is a quote or a slash not closed?)"
    large = "too many expressions" in line or "Too many items" in line
    return f"{line}: use smaller repetitions, or * or +" if large else line


def _character(row: str, byte_column: int, why: str) -> int:
    """Columns come in bytes; an unknown name is reported where its rule's body starts."""
    column = len(row.encode()[: byte_column - 1].decode(errors="replace")) + 1
    if name := re.match(r'unknown name: "(\w+)"', why):
        found = re.compile(rf"\b{re.escape(name[1])}\b").search(row, column - 1)
        column = found.start() + 1 if found else column
    return column


def _inline_json_place(text: str, line: int, column: int) -> str:
    """Places count from just after the `%json`: the first one that does not parse."""
    for mark in re.finditer("%json", text):
        try:
            json.JSONDecoder().raw_decode(text[mark.end() :].lstrip())
        except (ValueError, RecursionError):
            before = text[: mark.end()].split("\n")
            shift = len(before[-1]) if line == 1 else 0
            return _at(len(before) + line - 1, column + shift)
    return ""


def _regex_place(text: str, found: re.Match[str]) -> str:
    """The caret refers to the rewritten pattern: find the character in the original one."""
    from llguidance import regex_to_lark

    target = len(found["pad"])
    text = text.rstrip("\n")
    # "\d" and "/" grow when rewritten.
    starts = range(len(text))
    offset = bisect_right(starts, target, key=lambda n: len(regex_to_lark(text[: n + 1])))
    before = text[:offset].split("\n")
    return _at(len(before), len(before[-1]) + 1)
