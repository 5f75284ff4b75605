"""One grammar file's text as linking rewrites it for llguidance."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from backend.errors import DerbyError
from backend.grammar.lark.text import LarkFile, Token, plain_name
from backend.grammar.messages import Origin, title, wrong
from backend.grammar.sources import GrammarSource


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name: `local` here is `name` in the file `module`; None is Lark's `common`."""

    module: str | None
    name: Token
    local: Token


@dataclass(slots=True)
class File:
    """A grammar file, read once; the main one is the module "". `lark` is None if it is no Lark."""

    module: str
    source: GrammarSource
    lark: LarkFile | None
    imports: dict[str, Import] = field(default_factory=dict[str, Import])

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


class LinkedText:
    """Every line of the file in its place, imports left blank, and what they stand for behind."""

    def __init__(self, file: File, lark: LarkFile, files: Mapping[str, File]) -> None:
        self._file = file
        self._lark = lark
        self._files = files
        self._taken = {plain_name(token) for token in lark.tokens} | {*file.imports}
        self._terminals: dict[tuple[str, str], str] = {}
        self.text = ""
        self.added: list[Origin] = []

    def imported_rules(self) -> Iterator[tuple[str, Import]]:
        """The rules from other files by the names that they have here."""
        for local, found in self._file.imports.items():
            if found.module is not None and found.name.kind != "terminal":
                yield local, found

    def write(self, rule: str, subgrammars: Mapping[str, str]) -> None:
        """Set `text` and `added`: the file started at `rule`, its imported rules being subgrammars.

        Another rule called `start` is renamed, to a name as long as that.
        """
        aside = "start" if rule == "start" else self._five_letters()
        self.text = self._own(aside)
        for local, found in self.imported_rules():
            name = aside if local == "start" else local
            self._append(f"{name}: @{subgrammars[local]}", self._file, found.name)
        if rule != "start":
            self._append(f"start: {rule}", self._file, self._where(rule))
        self._write_terminals()

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
            words = self._lark.tokens[statement.body : statement.end]
            if words and words[0].text != "common":
                kept = [word for word in (statement.at, *words) if word.kind != "newline"]
                changes.append((kept[0].start, kept[-1].end, ""))
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
        waiting: list[tuple[str, str]] = []
        for local, found in self._file.imports.items():
            if found.module is None or found.name.kind != "terminal":
                continue
            key = found.module, found.name.text
            if key in self._terminals:
                self._append(f"{local}: {self._terminals[key]}", self._file, found.name)
            else:
                self._terminals[key] = local
                waiting.append(key)
        for module, name in waiting:
            waiting += self._define(self._files[module], name, self._terminals[module, name])

    def _define(self, file: File, name: str, local: str) -> list[tuple[str, str]]:
        """Write out one terminal of another file; those that it needs and are not written yet."""
        found = file.imports.get(name)
        if found and found.module is None:
            self._append(f"%import common.{found.name.text} -> {local}", file, found.name)
            return []
        if found and found.module is not None:
            new = self._need(found.module, found.name.text)
            inner = self._terminals[found.module, found.name.text]
            self._append(f"{local}: {inner}", file, found.name)
            return new
        return self._copy(file, file.lark, name, local) if file.lark else []

    def _copy(self, file: File, lark: LarkFile, name: str, local: str) -> list[tuple[str, str]]:
        definition = lark.definitions[name]
        body = lark.tokens[definition.body : definition.end]
        start, end = (body[0].start, body[-1].end) if body else (0, 0)
        changes: list[tuple[int, int, str]] = []
        new: list[tuple[str, str]] = []
        for token in body:
            if token.kind != "terminal":
                continue
            if token.text not in lark.definitions and token.text not in file.imports:
                raise file.wrong(token, f"unknown name: {token.text!r}")
            new += self._need(file.module, token.text)
            inner = self._terminals[file.module, token.text]
            changes.append((token.start - start, token.end - start, inner))
        text = _replaced(lark.text[start:end].rstrip(), changes)
        self._append(f"{local}: {text}", file, body[0] if body else definition.at)
        return new

    def _need(self, module: str, name: str) -> list[tuple[str, str]]:
        """Have a name here for another file's terminal; the terminal, unless it had one."""
        if (module, name) in self._terminals:
            return []
        local = unused(f"{module.upper()}__{name}", self._taken)
        self._taken.add(local)
        self._terminals[module, name] = local
        return [(module, name)]

    def _append(self, text: str, file: File, at: Token) -> None:
        self.text += "\n" + text
        for n in range(text.count("\n") + 1):
            self.added.append(Origin(file.title, at.line + n, 1 if n else at.column))


def unused(name: str, taken: Collection[str]) -> str:
    """The name, with underscores behind it until it is not taken."""
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
