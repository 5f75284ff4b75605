"""Grammars as text: what a constraint is compiled from, and the ones that ship."""

import json
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from backend.errors import DerbyError

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


_IMPORT = re.compile(r"%import\s+\.([\w-]+)")
#: What turns the order of shown text around, so that a grammar reads as what it is not; and NUL.
_UNSEEN = re.compile("[\0\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """A grammar as it was written. Raises DerbyError if it is empty, too long, of an unknown kind,
    or contains characters that hide or reorder text.

    A Lark grammar starts at the rule `start`, a GBNF one at `root`. A JSON Schema may choose its
    layout in `x-guidance`. Line breaks after a regular expression and a byte order mark before a
    text do not count. `modules` are the files that a user's own Lark file imports beside the
    shipped ones. `relax`: the parts of a JSON Schema that the engine cannot handle are left out,
    and checked when a text has ended.
    """

    kind: Kind
    text: str
    name: str
    modules: tuple["GrammarSource", ...] = ()
    relax: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", self.text.removeprefix("\ufeff"))
        if self.kind not in get_args(Kind):
            raise DerbyError(
                f"The grammar kind is {self.kind!r}; it must be one of {', '.join(get_args(Kind))}."
            )
        if not self.text.strip():
            raise DerbyError("The grammar is empty: write one or choose a ready-made one.")
        try:
            size = len(self.text.encode())
        except UnicodeEncodeError as error:
            raise DerbyError(
                f"The grammar's character {error.start + 1} is half of a surrogate pair: remove it."
            ) from error
        if size > MAX_BYTES:
            raise DerbyError(
                f"The grammar is {size} bytes long; the limit is {MAX_BYTES}: shorten it."
            )
        if unseen := _UNSEEN.search(self.text):
            before = self.text[: unseen.start()].split("\n")
            raise DerbyError(
                f"The grammar is wrong at line {len(before)}, column {len(before[-1]) + 1}: the "
                f"character U+{ord(unseen[0]):04X} hides or reorders text: remove it, or write it "
                "as an escape."
            )


@dataclass(frozen=True, slots=True)
class GrammarExamples:
    """Texts that a shipped grammar accepts and rejects, and a prompt that suits it."""

    accept: tuple[str, ...]
    reject: tuple[str, ...]
    prompt: str


@cache
def shipped() -> dict[str, GrammarSource]:
    """The grammars of the repository's `grammars/` folder by name, in alphabetical order."""
    found = [_read(path) for suffix in _SUFFIXES for path in FOLDER.glob(f"*{suffix}")]
    return {source.name: source for source in sorted(found, key=lambda source: source.name)}


def grammar_from_file(path: Path) -> GrammarSource:
    """A user's own grammar. The file's name gives its kind, as for the shipped ones. Files of its
    folder that it imports, directly or not, are added as `modules`. Raises DerbyError if a file
    cannot be read or its name ends in none of the known suffixes.
    """
    source = _read(path)
    modules: dict[str, GrammarSource] = {}
    wanted = _imported(source)
    while wanted:
        name = wanted.pop()
        beside = [path.with_name(f"{name}{suffix}") for suffix in _SUFFIXES]
        if name not in modules and (file := next(filter(Path.is_file, beside), None)):
            modules[name] = _read(file)
            wanted |= _imported(modules[name])
    return replace(source, modules=tuple(modules.values()))


def _imported(source: GrammarSource) -> set[str]:
    """Names of files that a grammar seems to import; one too many, in a comment, does no harm."""
    return set(_IMPORT.findall(source.text)) if source.kind == "lark" else set()


def _read(path: Path) -> GrammarSource:
    for suffix, kind in _SUFFIXES.items():
        if path.name.endswith(suffix):
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise DerbyError(f"Cannot read the grammar {path}: {error}.") from error
            return GrammarSource(kind, text, path.name.removesuffix(suffix))
    raise DerbyError(
        f"The kind of the grammar {path.name!r} is unknown: its name must end in one of "
        f"{', '.join(_SUFFIXES)}."
    )


def examples(name: str) -> GrammarExamples:
    """The contents of `NAME.examples.json` beside a shipped grammar."""
    record = json.loads((FOLDER / f"{name}.examples.json").read_text(encoding="utf-8"))
    return GrammarExamples(tuple(record["accept"]), tuple(record["reject"]), record["prompt"])
