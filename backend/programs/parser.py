"""The parser of prompt programs: text with {{tags}} becomes frozen nodes; nothing runs here."""

import re
from dataclasses import dataclass, field
from itertools import groupby

from backend.errors import DerbyError, beyond, either, unknown

MAX_NODES = 1_000
MAX_TEXT = 65_536
MAX_DEPTH = 10
MAX_TIMES = 1_000
MAX_CHOICES = 64
MAX_REGEX = 1_000

OPTIONS = ("max_tokens", "stop", "temperature", "regex")
TAGS = ("gen", "select", "repeat", "end", "assistant")

_PROGRAM = re.compile(r"\{\{[ \t\r\n]*(?:gen|select|repeat|assistant)\b")
# In {{{x}} the tag is the inner pair, so that a JSON object may begin right before a tag.
_OPEN = re.compile(r"\{\{(?!\{)")
_SPACE = re.compile(r"[ \t\r\n]*+")
_CLOSE = re.compile("}}")
_CLOSE_LINE = re.compile(r"}}(?:\r?\n)?")
_EQUALS = re.compile("=")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*+")
_BARE = re.compile(r'[^ \t\r\n"{}]++')
_STRING = re.compile(r'"((?:[^"\\\n]++|\\[^\n])*+)"')
_ESCAPE = re.compile(r'\\([nt"\\])')
_ESCAPED = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}
# Bounded digits: no number in range needs more, and converting very long ones is slow.
_WHOLE = re.compile(r"[0-9]{1,9}")
_DECIMAL = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,17})?")


@dataclass(frozen=True, slots=True)
class Text:
    """Fixed text."""

    text: str


@dataclass(frozen=True, slots=True)
class Gen:
    """Text that the model writes. If temperature is None, the request's applies. If regex is "",
    any text is allowed.
    """

    name: str
    max_tokens: int = 32
    stop: tuple[str, ...] = ()
    temperature: float | None = None
    regex: str = ""


@dataclass(frozen=True, slots=True)
class Select:
    """One of the options: the one that the model prefers."""

    name: str
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """The value of the latest slot of this name."""

    name: str


Slot = Gen | Select
Node = Text | Gen | Select | Value


@dataclass(frozen=True, slots=True)
class Program:
    """A parsed program. Repeats are expanded, adjacent texts are merged, and none is empty. If
    `user` is "", there is no separate user's turn.
    """

    nodes: tuple[Node, ...]
    user: str = ""


def is_program(text: str) -> bool:
    """Whether the text has a tag other than {{name}} or {{end}}. Other kinds of templates have
    none.
    """
    return _PROGRAM.search(text) is not None


def parse_program(text: str) -> Program:
    """Raises DerbyError, in one sentence with line and column, for the first flaw."""
    return _Parser(text).parse()


@dataclass(slots=True)
class _Block:
    """The outermost level, or the part between a {{repeat}} (at `at`) and its {{end}}."""

    at: int = 0
    times: int = 1
    nodes: list[Node] = field(default_factory=list)  # adjacent texts unmerged: joined once, at last
    size: int = 0  # how many nodes there are once merged
    characters: int = 0

    def text(self) -> str:
        return "".join(node.text for node in self.nodes if isinstance(node, Text))

    def merged(self) -> list[Node]:
        merged: list[Node] = []
        for kind, group in groupby(self.nodes, type):
            run = list(group)
            merged += [Text(_Block(nodes=run).text())] if kind is Text else run
        return merged


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0  # the next character to read
        self.tag = 0  # where the tag being read begins
        self.blocks = [_Block()]
        self.slots: dict[str, int] = {}  # where each name first stands
        self.user: str | None = None

    def parse(self) -> Program:
        while opening := _OPEN.search(self.text, self.at):
            self._add(Text(self.text[self.at : opening.start()]), self.at)
            self.tag, self.at = opening.span()
            self._read_tag()
        self._add(Text(self.text[self.at :]), self.at)
        block = self.blocks[-1]
        self._check(len(self.blocks) == 1, block.at, "{{repeat}} without {{end}}")
        self._check(self.slots, 0, "no slot: add a {{gen}}")
        return Program(tuple(block.merged()), self.user or "")

    def _read_tag(self) -> None:
        word = self._match(_WORD)
        match word and word[0]:
            case "gen":
                self._slot(self._gen())
            case "select":
                self._slot(self._select())
            case "repeat":
                self._repeat()
            case "end":
                self._end()
            case "assistant":
                self._assistant()
            case str(name):
                self._close()
                problem = f"no earlier slot is named {name!r:.60}: to write braces, put a space"
                self._check(name in self.slots, self.tag, f"{problem} between them")
                self._add(Value(name), self.tag)
            case _:
                raise self._expected(f"{either(TAGS)}, or a slot's name")

    def _slot(self, slot: Slot) -> None:
        self._close()
        self.slots.setdefault(slot.name, self.tag)
        self._add(slot, self.tag)

    def _gen(self) -> Gen:
        name = self._name()
        max_tokens, temperature, regex = 32, None, ""
        stop: list[str] = []
        seen: set[str] = set()
        while word := self._match(_WORD):
            key, at = word[0], word.start()
            problem = str(unknown("option", key, OPTIONS)).rstrip(".")
            self._check(key in OPTIONS, at, problem)
            self._check(key == "stop" or key not in seen, at, f"{key} is given twice")
            seen.add(key)
            if not self._match(_EQUALS):
                raise self._expected("'='")
            match key:
                case "max_tokens":
                    max_tokens = int(self._number(key, _WHOLE, 1, 4096))
                case "temperature":
                    temperature = self._number(key, _DECIMAL, 0, 5)
                case "stop":
                    stop.append(self._filled(key, MAX_TEXT))
                case _:
                    regex = self._filled(key, MAX_REGEX)
        return Gen(name, max_tokens, tuple(stop), temperature, regex)

    def _select(self) -> Select:
        name = self._name()
        at, text = self._string()
        options = text.split("|")
        self._range("options", len(options), at, MAX_CHOICES, 2)
        for i, option in enumerate(options):
            self._check(option, at, f"{option!r} is empty")
            self._check(option not in options[:i], at, f"{option!r:.60} is given twice")
        return Select(name, tuple(options))

    def _repeat(self) -> None:
        times = int(self._number("repeat", _WHOLE, 1, MAX_TIMES))
        self._close(_CLOSE_LINE)
        self._range("depth", len(self.blocks), self.tag, MAX_DEPTH)
        self.blocks.append(_Block(self.tag, times))

    def _end(self) -> None:
        self._close(_CLOSE_LINE)
        self._check(len(self.blocks) > 1, self.tag, "{{end}} without {{repeat}}")
        block = self.blocks.pop()
        # Copies are added one node at a time, so that the first one past a limit ends it.
        nodes = block.merged()
        for _ in range(block.times if nodes else 0):
            for node in nodes:
                self._add(node, block.at)

    def _assistant(self) -> None:
        self._close()
        user, first = self.blocks[0], self.user is None
        self.user = user.text()
        alone = first and len(self.blocks) == 1 and not self.slots and self.user.strip()
        problem = "{{assistant}} must stand once, behind a text without slots and repeats"
        self._check(alone, self.tag, problem)
        self.blocks = [_Block(characters=user.characters)]

    def _add(self, node: Node, at: int) -> None:
        block = self.blocks[-1]
        is_text = isinstance(node, Text)
        if is_text and not node.text:
            return
        block.characters += len(node.text) if is_text else 0
        block.size += not (is_text and block.nodes and isinstance(block.nodes[-1], Text))
        block.nodes.append(node)
        self._range("pieces", block.size, at, MAX_NODES)
        self._range("length of text", block.characters, at, MAX_TEXT)

    def _name(self) -> str:
        at, name = self._string()
        problem = f"{name!r:.60} cannot name a slot: choose another, of letters, digits and _"
        self._check(_WORD.fullmatch(name) and name not in TAGS, at, problem)
        return name

    def _filled(self, key: str, limit: int) -> str:
        at, text = self._string()
        self._range(f"characters of {key}", len(text), at, limit, 1)
        return text

    def _number(self, key: str, form: re.Pattern[str], low: int, high: int) -> float:
        bare = self._match(_BARE)
        if not bare:
            raise self._expected("a number")
        value = float(bare[0]) if form.fullmatch(bare[0]) else -1
        name = f"the whole number {key}" if form is _WHOLE else key
        problem = beyond(name, f"{bare[0]:.60}", low, high)
        self._check(low <= value <= high, bare.start(), problem)
        return value

    def _range(self, what: str, value: int, at: int, high: int, low: int = 0) -> None:
        self._check(low <= value <= high, at, beyond(what, value, low, high))

    def _string(self) -> tuple[int, str]:
        found = self._match(_STRING)
        if found:
            return found.start(), _ESCAPE.sub(lambda escape: _ESCAPED[escape[1]], found[1])
        raise self._expected("a string in double quotes")

    def _close(self, pattern: re.Pattern[str] = _CLOSE) -> None:
        if not self._match(pattern):
            raise self._expected("}}")

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """What the pattern finds after any space, which is read in either case."""
        space = _SPACE.match(self.text, self.at)
        self.at = space.end() if space else self.at
        found = pattern.match(self.text, self.at)
        self.at = found.end() if found else self.at
        return found

    def _check(self, fine: object, at: int, problem: str) -> None:
        if not fine:
            raise self._error(at, problem)

    def _expected(self, what: str) -> DerbyError:
        if self.at == len(self.text):
            return self._error(self.tag, "{{ without }}")
        rest = self.text[self.at :].partition("\n")[0]
        return self._error(self.at, f"{what} must stand where {rest!r:.20} is")

    def _error(self, at: int, problem: str) -> DerbyError:
        line = self.text.count("\n", 0, at) + 1
        column = at - self.text.rfind("\n", 0, at)
        return DerbyError(f"Line {line}, column {column}: {problem}.")
