"""Grammars as text, the ones that ship, and what llguidance gets of them: its definition, or one
sentence on what is wrong.
"""

import json
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from backend.errors import DerbyError, check_range, unknown
from backend.types import require_unicode

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


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """A grammar as it was written; a Lark one starts at the rule `start`. Raises DerbyError if it
    is empty, too long or of an unknown kind.
    """

    kind: Kind
    text: str
    name: str

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise unknown("kind of grammar", self.kind, get_args(Kind))
        if not self.text.strip():
            raise DerbyError("The grammar is empty: write one or choose a ready-made one.")
        require_unicode("grammar", self.text)
        check_range("grammar size", self.bytes, 1, MAX_BYTES)

    @property
    def bytes(self) -> int:
        """Its length in UTF-8."""
        return len(self.text.encode())


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
                text = path.read_text(encoding="utf-8-sig")
            except (OSError, UnicodeDecodeError) as error:
                raise DerbyError(f"Cannot read the grammar {path}: {error}.") from error
            return GrammarSource(kind, text, path.name.removesuffix(suffix))
    raise unknown("kind of grammar", path.name, _SUFFIXES)


#: "%import sql" alone on its line: the rule `sql` is the shipped grammar of that name.
_IMPORT = re.compile(r"(?m)^%import[ \t]+([a-z_]+)[ \t]*\r?$")
#: At most one space, or a line break and an indent, wherever JSON allows white space: a small model
#: that may write one more space for ever will. A schema's own `x-guidance` layout wins.
_LAYOUT: Any = {"whitespace_pattern": r" |\r?\n( {0,32}|\t{0,16})"}
#: What llguidance does not know, or not for sure, is left to the judge.
_JUDGED: Any = {"lenient": True, "coerce_one_of": True}
#: Without \u, which JSON needs for a few control characters alone: a declared name could be
#: spelled with it, as one that is not declared.
_ESCAPES: Any = {"json_allowed_escapes": 'nrbtf\\"'}
#: A name that no grammar of one part has.
_BODY = "body"

#: Where its words end or repeat the grammar's lines, and how many characters a sentence repeats.
_EXCERPT = re.compile(r"\n(\s*\d+ \||<non-verbose/>)")
_LONGEST = 120


@lru_cache(maxsize=64)
def definition_of(source: GrammarSource) -> str:
    """A grammar as llguidance's JSON, so that no text can be taken for another format. Nothing is
    compiled. Raises DerbyError for what is no JSON, for GBNF, and for what `composed` refuses.
    """
    match source.kind:
        case "json_schema":
            grammar = {"json_schema": _schema(source)}
        case "regex":
            grammar = {"lark_grammar": f"start: {_body(source)}"}
        case "lark":
            grammar = {"lark_grammar": composed(source.text)}
        case "gbnf":
            raise DerbyError(
                "A GBNF grammar is llama.cpp's, whose column llamacpp:grammar=own runs it as it "
                "is: for another column write Lark, a JSON Schema or a regular expression (regex)."
            )
    return json.dumps({"grammars": [grammar]})


def between(source: GrammarSource, lead: str, behind: str, closing: str = "") -> str:
    """The definition of the same texts with `lead` in front of each, or else with anything up to
    the first `closing`; and with `behind` and then anything after each.

    A regular expression makes one terminal with the text behind, so that its text may end at each
    place where that begins; another grammar's last terminal is as long as it can be.
    """
    if not (lead or closing or behind):
        return definition_of(source)
    (grammar,) = json.loads(definition_of(source))["grammars"]
    front, back = "LEAD " if lead or closing else "", " BEHIND" if behind else ""
    if source.kind == "regex":
        lines = [f"start: {front}TEXT", f"TEXT: {_body(source)}{back}"]
    else:
        lines = [f"start: {front}@{_BODY}{back}"]
    if behind:
        lines.append(f"BEHIND: {json.dumps(behind, ensure_ascii=False)} /(?s:.*)/")
    if front:
        thought = "THOUGHT " if closing else ""
        lines.append(f"LEAD: {thought}{json.dumps(lead or closing, ensure_ascii=False)}")
    if closing:
        ended = regex_literal(f"(?s:.*){re.escape(closing)}(?s:.*)")
        lines.append(f"THOUGHT: /(?s:.*)/ & ~{ended}")
    framed = {"lark_grammar": "\n".join(lines)}
    return json.dumps({"grammars": [framed, {**grammar, "name": _BODY}]})


def composed(text: str) -> str:
    """A Lark text with the shipped grammars that it imports as rules behind its last line, so that
    its own lines keep their numbers. Raises DerbyError for an import of another.
    """
    names = dict.fromkeys(_IMPORT.findall(text))
    for name in names:
        if name not in shipped():
            raise unknown("grammar", name, shipped())
    return _IMPORT.sub("", text) + "".join(f"\n{name}: {_body(shipped()[name])}" for name in names)


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
    """A regular expression as Lark writes it, between slashes."""
    from llguidance import regex_to_lark

    return f"/{regex_to_lark(pattern)}/"


def _schema(source: GrammarSource) -> Any:
    """A JSON Schema for llguidance, with its layout."""
    from llguidance import LLMatcher

    layout = {} if "whitespace_flexible" in source.text else _LAYOUT
    try:
        grammar = LLMatcher.grammar_from_json_schema(source.text, _JUDGED | layout, _ESCAPES)
    except ValueError as error:
        raise refusal(str(error)) from error
    return json.loads(grammar)["grammars"][0]["json_schema"]


def refusal(printed: str) -> DerbyError:
    """The error with llguidance's own words against a grammar: "at 3(7)" is line 3, column 7."""
    words = _EXCERPT.split(printed)[0]
    why = "no text fits it" if words.startswith("NoExtension") else " ".join(words.split())
    why = why[:_LONGEST].rstrip(".:")
    return DerbyError(f"The grammar cannot be followed ({why}): mend or simplify that part.")
