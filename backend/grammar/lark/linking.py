"""Grammar files that import one another, joined into the list of grammars llguidance reads.

An imported rule becomes a subgrammar, `sql_code: @sql__start`, so that its file keeps its own
`%ignore`; an imported terminal is written out with the terminals that it is made of.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from typing import Any

from backend.errors import DerbyError
from backend.grammar.lark.linked_text import File, Import, LinkedText, unused
from backend.grammar.lark.text import Statement, parse
from backend.grammar.messages import Part, title
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
    main = File("", source, lark := parse(source.text), {})
    if lark.unreadable:
        return (Part("", {"lark_grammar": source.text}, source),)
    return _Linker(find, one).linked(main)


class _Linker:
    def __init__(self, find: Find, one: One) -> None:
        self._find = find
        self._one = one
        self._files: dict[str, File] = {}
        self._parts: list[Part] = []
        self._names: dict[tuple[str, str], str] = {}
        self._bytes = 0

    def linked(self, main: File) -> tuple[Part, ...]:
        self._load(main)
        for file in [main, *self._files.values()]:
            self._check(file)
        waiting = [(main, "start")]
        for file, rule in waiting:
            waiting += self._add(file, rule)
        return tuple(self._parts)

    def _load(self, main: File) -> None:
        """Read all files that `main` draws in. Raises DerbyError for one missing, or a circle."""
        path = [(main, self._imports(main))]
        while path:
            file, rest = path[-1]
            found = next(rest, None)
            if found is None:
                path.pop()
                continue
            module = found.module or ""
            files = [above for above, _ in path]
            again = next((i for i, above in enumerate(files) if above.module == module), -1)
            if again < 0 and module not in self._files:
                opened = self._open(file, found)
                same = opened.source.kind == "lark" and opened.source.text == main.source.text
                again = 0 if same else again
                path.append((opened, self._imports(opened)))
            if again >= 0:
                names = [above.module or module for above in files[again:]]
                chain = " -> ".join([*names, names[0]])
                raise file.wrong(found.name, f"the files import one another: {chain}")

    def _open(self, file: File, found: Import) -> File:
        module = found.module or ""
        source = self._find(module)
        if source is None:
            raise file.wrong(found.name, f"there is no grammar file {module!r} to import from")
        if len(self._files) == MAX_MODULES:
            why = f"{module!r} is one more imported file than the limit of {MAX_MODULES}"
            raise file.wrong(found.name, f"{why}: join some of them")
        lark = parse(source.text) if source.kind == "lark" else None
        opened = self._files[module] = File(module, source, lark)
        if lark and lark.unreadable:
            why = "this cannot be read as Lark (is a quote, a slash or a brace left open?)"
            raise opened.wrong(lark.unreadable, why)
        return opened

    def _imports(self, file: File) -> Iterator[Import]:
        """The file's imports from other files. All of its imports are put into `file.imports`."""
        for statement in file.lark.imports if file.lark else ():
            for found in _imported(file, statement):
                _enter(file, found)
                if found.module is not None:
                    yield found

    def _check(self, file: File) -> None:
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

    def _add(self, file: File, rule: str) -> list[tuple[File, str]]:
        """Write the part that starts at `rule`; what it refers to and is not written yet."""
        name = self._names[file.module, rule] if file.module else ""
        named = {"name": name} if name else {}
        if file.lark is None:
            grammar = self._one(file.source, file.title)
            self._count(grammar.get("lark_grammar", file.source.text))
            self._parts.append(Part(name, {**named, **grammar}, file.source))
            return []
        text = LinkedText(file, file.lark, self._files)
        new: list[tuple[File, str]] = []
        subgrammars: dict[str, str] = {}
        for local, found in text.imported_rules():
            target = self._files[found.module or ""]
            key = target.module, found.name.text
            if key not in self._names:
                self._names[key] = unused("__".join(key), self._names.values())
                new.append((target, found.name.text))
            subgrammars[local] = self._names[key]
        text.write(rule, subgrammars)
        self._count(text.text)
        grammar = {**named, "lark_grammar": text.text}
        self._parts.append(Part(name, grammar, file.source, tuple(text.added)))
        return new

    def _count(self, text: str) -> None:
        self._bytes += len(text.encode())
        if self._bytes > MAX_LINKED_BYTES:
            raise DerbyError(
                f"The grammar and what it imports are {self._bytes} bytes long or more, a file "
                f"counted for each rule taken from it; the limit is {MAX_LINKED_BYTES}: import "
                "fewer rules."
            )


def _enter(file: File, found: Import) -> None:
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


def _imported(file: File, statement: Statement) -> list[Import]:
    """What one `%import` line brings. Malformed ones of `common` are left to llguidance."""
    tokens = file.lark.tokens[statement.body : statement.end] if file.lark else ()
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
        return [Import(module, name, name) for name in names[1:]]
    if shape in (".n.n", "n.n"):
        return [Import(module, names[1], names[1])]
    if shape in (".n.n->n", "n.n->n"):
        return [Import(module, names[1], names[2])]
    if relative:
        forms = "'%import .file.name', '%import .file.name -> other' or '%import .file (a, b)'"
        raise file.wrong(statement.at, f"this import is none of {forms}")
    return []
