"""Joins grammar files that import one another into the list of grammars that llguidance reads.

An imported rule becomes a subgrammar, `sql_code: @sql__start`, so that its file keeps its own
`%ignore`. An imported terminal is written out together with the terminals that it consists of.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backend.errors import DerbyError
from backend.grammar.lark.text import LarkFile, Statement, Token, parse, plain_name
from backend.grammar.messages import Origin, Part, title, wrong
from backend.grammar.sources import MAX_BYTES, GrammarSource

#: Files that one grammar may draw in, itself not counted.
MAX_MODULES = 32
#: UTF-8 bytes of all texts together, once linked: a file counts for every rule taken from it.
MAX_LINKED_BYTES = 4 * MAX_BYTES

Find = Callable[[str], GrammarSource | None]
#: llguidance's form of a source that is not Lark; the text is what errors call the file.
One = Callable[[GrammarSource, str], dict[str, Any]]


def link(source: GrammarSource, find: Find, one: One) -> tuple[Part, ...]:
    """What llguidance is to compile, the main grammar first: give it each part's `grammar`.

    `find` gives the file of a name. Raises DerbyError with file, line and column for imports that
    lead nowhere, clash or go in circles.
    """
    if source.kind != "lark":
        return (Part("", one(source, title(source, imported=False)), source),)
    main = _File("", source, lark := parse(source.text), {})
    if lark.unreadable:
        return (Part("", {"lark_grammar": source.text}, source),)
    return _Linker(find, one).linked(main)


class _Linker:
    def __init__(self, find: Find, one: One) -> None:
        self._find = find
        self._one = one
        self._files: dict[str, _File] = {}
        self._parts: list[Part] = []
        self._names: dict[tuple[str, str], str] = {}
        self._waiting: list[tuple[_File, str]] = []
        self._bytes = 0

    def linked(self, main: _File) -> tuple[Part, ...]:
        self._load(main)
        for file in [main, *self._files.values()]:
            self._check(file)
        self._waiting.append((main, "start"))
        for file, rule in self._waiting:
            self._add(file, rule)
        return tuple(self._parts)

    def _load(self, file: _File, above: tuple[_File, ...] = ()) -> None:
        """Read all files that `file` draws in, to which those `above` led. Raises DerbyError if one
        is missing, or for a circle.
        """
        path = (*above, file)
        modules = [each.module for each in path]
        for found in self._imports(file):
            module = found.module or ""
            if module in self._files and module not in modules:
                continue
            if module not in modules:
                opened = self._open(file, found)
                if opened.lark is None or opened.source.text != path[0].source.text:
                    self._load(opened, path)
                    continue
            begin = modules.index(module) if module in modules else 0
            chain = " -> ".join([*(each or module for each in modules[begin:]), module])
            raise file.wrong(found.name, f"the files import one another: {chain}")

    def _open(self, file: _File, found: _Import) -> _File:
        module = found.module or ""
        source = self._find(module)
        if source is None:
            raise file.wrong(found.name, f"there is no grammar file {module!r} to import from")
        if len(self._files) == MAX_MODULES:
            why = f"{module!r} is one more imported file than the limit of {MAX_MODULES}"
            raise file.wrong(found.name, f"{why}: join some of them")
        lark = parse(source.text) if source.kind == "lark" else None
        opened = self._files[module] = _File(module, source, lark)
        if lark and lark.unreadable:
            why = "this cannot be read as Lark (is a quote, a slash or a brace not closed?)"
            raise opened.wrong(lark.unreadable, why)
        return opened

    def _imports(self, file: _File) -> Iterator[_Import]:
        """The file's imports from other files. All of its imports are put into `file.imports`."""
        for statement in file.lark.imports if file.lark else ():
            for found in _imported(file, statement):
                _enter(file, found)
                if found.module is not None:
                    yield found

    def _check(self, file: _File) -> None:
        """Raise DerbyError for an import of a name that is not there, or of another sort."""
        for found in file.imports.values():
            if found.module is None:
                continue
            names = self._files[found.module].names()
            if found.name.text not in names:
                close = difflib.get_close_matches(found.name.text, names, 1)
                hint = f"; it has {close[0]!r}" if close else ""
                why = f"the file {found.module!r} has no {found.name.text!r}{hint}"
                raise file.wrong(found.name, why)
            if found.name.kind != found.local.kind:
                terminal = found.name.kind == "terminal"
                sort, case = ("terminal", "capital") if terminal else ("rule", "small")
                why = f"{found.name.text!r} is a {sort}: its name here must be in {case} letters"
                raise file.wrong(found.local, why)

    def _add(self, file: _File, rule: str) -> None:
        """Write the part that starts at `rule`."""
        name = self._names[file.module, rule] if file.module else ""
        added: list[Origin] = []
        if file.lark is None:
            grammar = self._one(file.source, file.title)
        else:
            linked = _LinkedText(file, file.lark, self._files)
            linked.write(rule, self._subgrammar)
            grammar, added = {"lark_grammar": linked.text}, linked.added
        self._count(grammar.get("lark_grammar", file.source.text))
        named = {"name": name} if name else {}
        self._parts.append(Part(name, {**named, **grammar}, file.source, tuple(added)))

    def _subgrammar(self, module: str, rule: str) -> str:
        """The name of the part that starts at a rule of a file, which is written later on."""
        key = module, rule
        if key not in self._names:
            self._names[key] = _unused("__".join(key), self._names.values())
            self._waiting.append((self._files[module], rule))
        return self._names[key]

    def _count(self, text: str) -> None:
        self._bytes += len(text.encode())
        if self._bytes > MAX_LINKED_BYTES:
            raise DerbyError(
                f"The grammar and what it imports are {self._bytes} bytes long or more, a file "
                f"counted for each rule taken from it; the limit is {MAX_LINKED_BYTES}: import "
                "fewer rules."
            )


def _enter(file: _File, found: _Import) -> None:
    """Put an import into `file.imports`. Raises DerbyError if its name is taken."""
    name = found.local.text
    if name in file.imports:
        earlier = file.imports[name].local
    elif file.lark and name in file.lark.definitions:
        earlier = file.lark.definitions[name].at
    else:
        file.imports[name] = found
        return
    where = f"{name!r} is also defined at line {earlier.line}, column {earlier.column}"
    other = f"{found.module or 'common'}_{name}"
    other = other.upper() if found.local.kind == "terminal" else other.lower()
    raise file.wrong(found.local, f"{where}: import it under another name, as in '-> {other}'")


def _imported(file: _File, statement: Statement) -> list[_Import]:
    """What one `%import` line brings. Malformed ones of `common` are left to llguidance."""
    tokens = file.lark.body(statement) if file.lark else ()
    words = [token for token in tokens if token.kind != "newline"]
    shape = "".join("n" if word.kind in ("rule", "terminal") else word.text for word in words)
    names = [word for word in words if word.kind in ("rule", "terminal")]
    relative = shape.startswith(".")
    first = names[0].text if names else ""
    if not relative and first != "common":
        at = words[0] if words else statement.at
        raise file.wrong(at, "write '%import .file.name' to import from a file, with a dot before")
    module = first if relative else None
    many = shape.removeprefix(".").removeprefix("n(")
    if many.endswith("n)") and many.replace(",", "") == "n" * (len(names) - 1) + ")":
        return [_Import(module, name, name) for name in names[1:]]
    if shape in (".n.n", "n.n"):
        return [_Import(module, names[1], names[1])]
    if shape in (".n.n->n", "n.n->n"):
        return [_Import(module, names[1], names[2])]
    if relative:
        forms = "'%import .file.name', '%import .file.name -> other' or '%import .file (a, b)'"
        raise file.wrong(statement.at, f"this import must be one of {forms}")
    return []


@dataclass(frozen=True, slots=True)
class _Import:
    """One imported name: `local` here is `name` in the file `module`; None is Lark's `common`."""

    module: str | None
    name: Token
    local: Token


@dataclass(slots=True)
class _File:
    """A grammar file, read once. The main file is the module "". `lark` is None if the text is not
    Lark.
    """

    module: str
    source: GrammarSource
    lark: LarkFile | None
    imports: dict[str, _Import] = field(default_factory=dict[str, _Import])

    @property
    def title(self) -> str:
        """What an error calls the file."""
        return title(self.source, imported=bool(self.module))

    def wrong(self, at: Token, why: str) -> DerbyError:
        """The error for a fault at a token."""
        return wrong(self.title, at.line, at.column, why)

    def names(self) -> Collection[str]:
        """What can be imported from the file."""
        return {**self.lark.definitions, **self.imports} if self.lark else ["start"]


class _LinkedText:
    """The file's lines in their places, with imports left blank, followed by what the imports stand
    for.
    """

    def __init__(self, file: _File, lark: LarkFile, files: Mapping[str, _File]) -> None:
        self._file = file
        self._lark = lark
        self._files = files
        self._taken = {plain_name(token) for token in lark.tokens} | {*file.imports}
        #: Names here of other files' terminals, which are defined in their order.
        self._terminals: dict[tuple[str, str], str] = {}
        self._waiting: list[tuple[str, str]] = []
        self.text = ""
        self.added: list[Origin] = []

    def write(self, rule: str, subgrammar: Callable[[str, str], str]) -> None:
        """Set `text` and `added`: the file started at `rule`, its imported rules being what
        `subgrammar` names of a file and a rule.

        Another rule called `start` is renamed, to a name as long as that.
        """
        aside = "start" if rule == "start" else self._five_letters()
        self.text = self._own(aside)
        for local, found in self._imported(terminals=False):
            name, inner = aside if local == "start" else local, found.name
            self._append(
                f"{name}: @{subgrammar(found.module or '', inner.text)}", self._file, inner
            )
        if rule != "start":
            self._append(f"start: {rule}", self._file, self._where(rule))
        self._write_terminals()

    def _imported(self, *, terminals: bool) -> list[tuple[str, _Import]]:
        """The rules, or else the terminals, of other files by the names that they have here."""
        return [
            (local, found)
            for local, found in self._file.imports.items()
            if found.module is not None and (found.name.kind == "terminal") == terminals
        ]

    def _five_letters(self) -> str:
        words = map("".join, itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=4))
        return next("s" + word for word in words if "s" + word not in self._taken)

    def _where(self, rule: str) -> Token:
        found = self._lark.definitions.get(rule)
        return found.at if found else self._file.imports[rule].local

    def _own(self, aside: str) -> str:
        changes: list[tuple[int, int, str]] = []
        blank: set[int] = set()
        for statement in self._lark.imports:
            words = self._lark.body(statement)
            if words and words[0].text != "common":
                kept = [word for word in (statement.at, *words) if word.kind != "newline"]
                begin, end = kept[0].start, kept[-1].end
                lines = self._lark.text.count("\n", begin, end)  # places of errors stay right
                changes.append((begin, end, "\n" * lines))
                blank.update(word.start for word in kept)
        if aside != "start":
            changes += [
                (token.end - len("start"), token.end, aside)
                for token in self._lark.tokens
                if plain_name(token) == "start" and token.start not in blank
            ]
        return _replaced(self._lark.text, sorted(changes))

    def _write_terminals(self) -> None:
        """Define the imported terminals, and under names of their own those that they need."""
        for local, found in self._imported(terminals=True):
            key = found.module or "", found.name.text
            if key in self._terminals:
                self._append(f"{local}: {self._terminals[key]}", self._file, found.name)
            else:
                self._terminals[key] = local
                self._waiting.append(key)
        for module, name in self._waiting:
            self._define(self._files[module], name, self._terminals[module, name])

    def _define(self, file: _File, name: str, local: str) -> None:
        """Write out one terminal of another file."""
        found = file.imports.get(name)
        if found and found.module is None:
            self._append(f"%import common.{found.name.text} -> {local}", file, found.name)
        elif found and found.module is not None:
            inner = self._need(found.module, found.name.text)
            self._append(f"{local}: {inner}", file, found.name)
        elif file.lark:
            self._copy(file, file.lark, name, local)

    def _copy(self, file: _File, lark: LarkFile, name: str, local: str) -> None:
        definition = lark.definitions[name]
        body = lark.body(definition)
        start, end = (body[0].start, body[-1].end) if body else (0, 0)
        changes: list[tuple[int, int, str]] = []
        for token in body:
            if token.kind != "terminal":
                continue
            if token.text not in lark.definitions and token.text not in file.imports:
                raise file.wrong(token, f"unknown name: {token.text!r}")
            inner = self._need(file.module, token.text)
            changes.append((token.start - start, token.end - start, inner))
        text = _replaced(lark.text[start:end].rstrip(), changes)
        self._append(f"{local}: {text}", file, body[0] if body else definition.at)

    def _need(self, module: str, name: str) -> str:
        """The name here of another file's terminal, which is defined later on."""
        key = module, name
        if key not in self._terminals:
            self._terminals[key] = _unused(f"{module.upper()}__{name}", self._taken)
            self._taken.add(self._terminals[key])
            self._waiting.append(key)
        return self._terminals[key]

    def _append(self, text: str, file: _File, at: Token) -> None:
        self.text += "\n" + text
        for n in range(text.count("\n") + 1):
            self.added.append(Origin(file.title, at.line + n, 1 if n else at.column))


def _unused(name: str, taken: Collection[str]) -> str:
    """The name, with as many underscores added as it takes to make it unused."""
    while name in taken:
        name += "_"
    return name


def _replaced(text: str, changes: Sequence[tuple[int, int, str]]) -> str:
    """The text with (start, end, new) spans exchanged; they are in order and do not overlap."""
    pieces: list[str] = []
    at = 0
    for start, end, new in changes:
        pieces += [text[at:start], new]
        at = end
    return "".join([*pieces, text[at:]])
