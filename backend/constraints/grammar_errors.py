"""What is wrong with a grammar, in one sentence, from what llguidance prints."""

import json
import re

from backend.grammars import GrammarSource, Kind
from backend.types import DerbyError

TITLES: dict[Kind, str] = {
    "lark": "The grammar",
    "json_schema": "The JSON Schema",
    "regex": "The regular expression",
}

#: "at 3(7): message", or without the "at": line 3, byte column 7.
_PLACE = re.compile(r"\A(?:at )?(\d+)\((\d+)\): ")
#: "    pattern\n    ^^^\nerror: message": an error inside a regular expression.
_IN_REGEX = re.compile(r"(?m)^ {4}(?P<pattern>.*)\n {4}(?P<pad> *)\^+.*\nerror: (?P<why>.+)$")
_IN_JSON = re.compile(r'failed to parse "%json": (?P<why>.+) at line (\d+) column (\d+)')
_LONGEST = 200


def explain(source: GrammarSource, printed: str) -> DerbyError:
    """The error for `printed`, llguidance's own words; line and column count characters from 1."""
    in_regex = _IN_REGEX.search(printed)
    if source.kind == "regex":
        if not in_regex:
            return _error("regex", "", _plainer(_PLACE.sub("", printed)))
        return _error("regex", _regex_place(source.text, in_regex), in_regex["why"])
    if source.kind == "lark" and (in_json := _IN_JSON.match(printed)):
        line, column = int(in_json[2]), int(in_json[3])
        return _error("lark", _inline_json_place(source.text, line, column), in_json["why"])
    place = _PLACE.match(printed)
    why = _plainer(printed[place.end() :] if place else printed)
    if in_regex:
        why = f"{in_regex['why']} in the regular expression {in_regex['pattern']!r}"
    if source.kind != "lark" or not place:
        return _error(source.kind, "", why)
    return _error("lark", _lark_place(source.text, int(place[1]), int(place[2]), why), why)


def json_error(error: ValueError | RecursionError) -> DerbyError:
    """The error for a JSON Schema that is not JSON."""
    if isinstance(error, json.JSONDecodeError):
        return _error("json_schema", _at(error.lineno, error.colno), f"not JSON: {error.msg}")
    if isinstance(error, RecursionError):
        return _error("json_schema", "", "it is nested too deeply")
    return _error("json_schema", "", "a number in it is too large, or not a JSON number")


def _error(kind: Kind, place: str, why: str) -> DerbyError:
    why = re.sub(r"\s+", " ", why).strip().rstrip(".")
    why = why if len(why) <= _LONGEST else why[:_LONGEST] + "..."
    return DerbyError(f"{TITLES[kind]} is wrong{place}: {why or 'no reason is known'}.")


def _at(line: int, column: int) -> str:
    return f" at line {line}, column {column}"


def _plainer(text: str) -> str:
    """The first line, without what refers to llguidance's own copy of the text."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    line = re.sub(r" \(at \".*| at line \d+ column \d+$", "", line)
    if line == "lexer error":
        return "this cannot be read as Lark (is a quote or a slash left open?)"
    return line


def _lark_place(text: str, line: int, byte_column: int, why: str) -> str:
    """Columns come in bytes; an unknown name is reported where its rule's body starts."""
    lines = text.split("\n")
    row = lines[line - 1] if 0 < line <= len(lines) else ""
    column = len(row.encode()[: byte_column - 1].decode(errors="replace")) + 1
    if name := re.match(r'unknown name: "(\w+)"', why):
        found = re.compile(rf"\b{re.escape(name[1])}\b").search(row, column - 1)
        column = found.start() + 1 if found else column
    return _at(line, column)


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
    """The caret stands in the rewritten pattern: find the character that it came from."""
    from llguidance import regex_to_lark

    target = len(found["pad"])
    text = text.rstrip("\n")
    # "\d" and "/" grow when rewritten.
    offset = next((n for n in range(len(text)) if len(regex_to_lark(text[: n + 1])) > target), 0)
    before = text[:offset].split("\n")
    return _at(len(before), len(before[-1]) + 1)
