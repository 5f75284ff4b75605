"""Grammars as text: what a constraint is compiled from, and the ones that ship."""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from backend.errors import DerbyError, check_range, invalid_character, unknown

#: GBNF is llama.cpp's own: it takes such a text as it is.
Kind = Literal["lark", "json_schema", "regex", "gbnf"]

#: Longest grammar taken, in UTF-8 bytes: far above what people write, small enough that
#: compiling a hostile one stays cheap.
MAX_BYTES = 16 * 1024

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
        try:
            size = len(self.text.encode())
        except UnicodeEncodeError as error:
            raise invalid_character("grammar", self.text, error.start) from error
        check_range("grammar size", size, 1, MAX_BYTES)
        if unseen := _UNSEEN.search(self.text):
            raise invalid_character("grammar", self.text, unseen.start())


@dataclass(frozen=True, slots=True)
class GrammarExamples:
    """Texts that a shipped grammar accepts and rejects, and a prompt that suits it."""

    accept: tuple[str, ...]
    reject: tuple[str, ...]
    prompt: str


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


def examples(name: str) -> GrammarExamples:
    """The contents of `NAME.examples.json` beside a shipped grammar."""
    record = json.loads((FOLDER / f"{name}.examples.json").read_text(encoding="utf-8"))
    return GrammarExamples(tuple(record["accept"]), tuple(record["reject"]), record["prompt"])
