"""Grammars as text, the ones that ship, and what llguidance gets of them: its definition, or one
sentence on what is wrong.
"""

import json
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from backend.errors import DerbyError, check_range, invalid_character, unknown
from backend.grammar.schema import read

Kind = Literal["lark", "json_schema", "regex", "gbnf"]

#: Longest grammar, in UTF-8 bytes, on one's own machine and on a page for everybody.
MAX_BYTES, MAX_PUBLIC_BYTES = 256 * 1024, 64 * 1024

FOLDER = Path(__file__).resolve().parents[2] / "grammars"
_SUFFIXES: dict[str, Kind] = {
    ".lark": "lark",
    ".schema.json": "json_schema",
    ".regex": "regex",
    ".gbnf": "gbnf",
}

#: What turns the order of shown text around, so that a grammar reads as what it is not; and NUL.
_UNSEEN = re.compile("[\0\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """A grammar as it was written; a Lark one starts at the rule `start`. A byte order mark before
    the text does not count. Raises DerbyError if it is empty, too long, of an unknown kind, or
    contains characters that hide or reorder text.
    """

    kind: Kind
    text: str
    name: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", self.text.removeprefix("\ufeff"))
        if self.kind not in get_args(Kind):
            raise unknown("kind of grammar", self.kind, get_args(Kind))
        if not self.text.strip():
            raise DerbyError("The grammar is empty: write one or choose a ready-made one.")
        if unseen := _UNSEEN.search(self.text):
            raise invalid_character("grammar", self.text, unseen.start())
        check_range("grammar size", self.bytes, 1, MAX_BYTES)

    @property
    def bytes(self) -> int:
        """Its length in UTF-8. Raises DerbyError for half a surrogate pair."""
        try:
            return len(self.text.encode())
        except UnicodeEncodeError as error:
            raise invalid_character("grammar", self.text, error.start) from error


@cache
def shipped() -> dict[str, GrammarSource]:
    """The grammars of the repository's `grammars/` folder by name, in alphabetical order."""
    sources = [
        grammar_from_file(path) for suffix in _SUFFIXES for path in FOLDER.glob(f"*{suffix}")
    ]
    return {source.name: source for source in sorted(sources, key=lambda source: source.name)}


def grammar_from_file(path: Path) -> GrammarSource:
    """The grammar in a file, of the kind that its name's ending says. Raises DerbyError for other
    names, and if it cannot be read.
    """
    for suffix, kind in _SUFFIXES.items():
        if path.name.endswith(suffix):
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise DerbyError(f"Cannot read the grammar {path}: {error}.") from error
            return GrammarSource(kind, text, path.name.removesuffix(suffix))
    raise unknown("kind of grammar", path.name, _SUFFIXES)


#: At most one space, or a line break and an indent, wherever JSON allows white space: a small model
#: that may write one more space for ever will. A schema's own `x-guidance` layout wins.
JSON_WHITESPACE = r" |\r?\n( {0,32}|\t{0,16})"
_LAYOUT_KEYS = {"whitespace_flexible", "whitespace_pattern"}
#: Attributes of Lark rules after which llguidance refuses to roll back.
_COUNTS_TOKENS = re.compile(r"\w\[[^\]\"'/]*\b(max_tokens|stop)\s*=")
#: "%import sql" alone on its line: the rule `sql` is the shipped grammar of that name.
_IMPORT = re.compile(r"(?m)^%import[ \t]+([a-z_]+)[ \t]*\r?$")
#: A name that no grammar of one part has.
_BODY = "body"

_TITLES: dict[Kind, str] = {
    "lark": "The grammar",
    "json_schema": "The JSON Schema",
    "regex": "The regular expression",
    "gbnf": "The GBNF",
}
#: "at 3(7): message", or without the "at": line 3, byte column 7.
_PLACE = re.compile(r"\A(?:at )?(\d+)\(\d+\): ")
#: Where the engine prints its own form of an expression, or advice to writers of Lark.
_DUMP = re.compile(r"(?::? +\((?:And|Or|Not|Concat|Repeat|Regex|SearchRegex)|; consider)\b.*")
#: Words of the engine on what it could follow if there were less of it.
_LIMIT = re.compile(
    r"(?i)unable to determine|exceeded|too (?:big|large|many|complex)|max is|limit|fuel"
)
_LONGEST = 300


@lru_cache(maxsize=64)
def definition_of(source: GrammarSource) -> str:
    """A grammar as llguidance's JSON, so that no text can be taken for another format. Nothing is
    compiled. Raises DerbyError for what is no JSON or GBNF, and for imports of what does not ship.
    """
    match source.kind:
        case "json_schema":
            grammar = {"json_schema": _schema(source)}
        case "regex":
            grammar = {"lark_grammar": f"start: {_body(source)}"}
        case "lark":
            grammar = {"lark_grammar": composed(source.text)}
        case "gbnf":
            from llguidance.gbnf_to_lark import gbnf_to_lark

            try:
                grammar = {"lark_grammar": gbnf_to_lark(source.text)}
            except Exception as error:  # its own errors, and some of no class of their own
                raise refusal(source, str(error)) from error
    return json.dumps({"grammars": [grammar]})


def between(source: GrammarSource, lead: str, behind: str, closing: str = "") -> str:
    """The definition of the same texts with `lead` in front of each, or else with anything up to
    the first `closing`; and with `behind` and then anything after each.

    A regular expression makes one terminal with the text behind, so that its text may end at each
    place where that begins; another grammar's last terminal is as long as it can be.
    """
    if not (lead or closing or behind):
        return definition_of(source)
    end = f" {_quoted(behind)} /(?s:.*)/" if behind else ""
    if source.kind == "regex":
        start, terminals, parts = "TEXT", [f"TEXT: {_body(source)}{end}"], []
    else:
        start, terminals = f"@{_BODY}", []
        parts = [{**json.loads(definition_of(source))["grammars"][0], "name": _BODY}]
        if end:
            start, terminals = f"{start} BEHIND", [f"BEHIND:{end}"]
    if lead or closing:
        start = f"LEAD {start}"
        terminals.append(f"LEAD: {'THOUGHT ' if closing else ''}{_quoted(lead or closing)}")
    if closing:
        ended = regex_literal(f"(?s:.*){re.escape(closing)}(?s:.*)")
        terminals.append(f"THOUGHT: /(?s:.*)/ & ~{ended}")
    grammar = {"lark_grammar": "\n".join([f"start: {start}", *terminals])}
    return json.dumps({"grammars": [grammar, *parts]})


def _quoted(text: str) -> str:
    """A text as a terminal of Lark."""
    return json.dumps(text, ensure_ascii=False)


def composed(text: str) -> str:
    """A Lark text with the shipped grammars that it imports, as rules behind its last line, so that
    its own lines keep their numbers. Raises DerbyError for an import of another, and for rules that
    count tokens, which llguidance cannot take back.
    """
    if counting := _COUNTS_TOKENS.search(text):
        raise DerbyError(
            f"The rule attribute {counting[1]} cannot be followed here: write a bounded regular "
            "expression instead, such as /[a-z]{1,20}/."
        )
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
        schema = read(source.text).value
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise refusal(source, str(error)) from error
    if isinstance(schema, dict):
        layout = schema.get("x-guidance", {})
        if isinstance(layout, dict) and _LAYOUT_KEYS.isdisjoint(layout):
            schema["x-guidance"] = {"whitespace_pattern": JSON_WHITESPACE, **layout}
    return schema


def too_much() -> DerbyError:
    """The error for a grammar that meets a limit of time or memory, or makes the engine crash."""
    return DerbyError(
        "The grammar takes too much time or memory: simplify it, and give every rule a way to end."
    )


def refusal(source: GrammarSource, printed: str) -> DerbyError:
    """The error with llguidance's own words against a grammar, and the line that they name."""
    place = _PLACE.match(printed)
    where = f" at line {place[1]}" if place and source.kind == "lark" else ""
    words = printed[place.end() if place else 0 :].strip().removeprefix("Parser Error: ")
    inner = re.search(r"(?m)^error: (.+)$", words)  # of a regular expression
    why = _DUMP.sub("", inner[1] if inner else words.partition("\n")[0])[:_LONGEST].rstrip(".:")
    if why.startswith("Unimplemented keys: "):
        return DerbyError(
            f"The JSON Schema uses {why.partition(': ')[2].strip('[]')}, which a grammar cannot "
            'enforce: leave it out, or add "x-guidance": {"lenient": true} at its top, and it is '
            "checked at the end."
        )
    if why.startswith("NoExtension"):
        why = "no text fits it"
    if _LIMIT.search(why):
        return DerbyError(
            f"{_TITLES[source.kind]} is more than can be followed while a text is written{where} "
            f"({why}): simplify that part."
        )
    return DerbyError(f"{_TITLES[source.kind]} is wrong{where}: {why}.")
