"""Grammars as text: what a constraint is compiled from, and the ones that ship."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from backend.errors import DerbyError, check_range, invalid_character, unknown

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
