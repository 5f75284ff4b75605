"""The parser of prompt programs: text with {{tags}} becomes frozen nodes; nothing runs here."""

import re
from dataclasses import dataclass

from backend.errors import DerbyError, beyond, either
from backend.types import PROGRAM_TAG

OPTIONS = ("max_tokens", "stop", "temperature", "regex")
TAGS = ("gen", "select", "assistant")

# In {{{x}} the tag is the inner pair, so that a JSON object may begin right before a tag.
_OPEN = re.compile(r"(?<!\\)\{\{(?!\{)")
_PLAIN = r"for plain text write \{{"
_SPACE = re.compile(r"[ \t\r\n]*+")
_CLOSE = re.compile("}}")
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
    """A parsed program; no text is empty. If `user` is "", there is no separate user's turn."""

    nodes: tuple[Node, ...]
    user: str = ""


def is_program(text: str) -> bool:
    """Whether the text has a tag other than {{name}} without a backslash before it. Other kinds of
    templates have none.
    """
    return any(not tag[1] for tag in PROGRAM_TAG.finditer(text))


def parse_program(text: str) -> Program:
    """Raises DerbyError, in one sentence with line and column, for the first flaw."""
    return _Parser(text).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0  # the next character to read
        self.tag = 0  # where the tag being read begins
        self.nodes: list[Node] = []
        self.slots: dict[str, int] = {}  # where each name first stands
        self.user: str | None = None

    def parse(self) -> Program:
        while opening := _OPEN.search(self.text, self.at):
            self._add_text(opening.start())
            self.tag, self.at = opening.span()
            self._read_tag()
        self._add_text(len(self.text))
        self._check(self.slots, 0, f"no slot: add a {{{{gen}}}}; {_PLAIN}")
        return Program(tuple(self.nodes), self.user or "")

    def _add_text(self, end: int) -> None:
        if end > self.at:
            self.nodes.append(Text(self.text[self.at : end].replace(r"\{{", "{{")))

    def _read_tag(self) -> None:
        word = self._match(_WORD)
        match word and word[0]:
            case "gen":
                self._slot(self._gen())
            case "select":
                self._slot(self._select())
            case "assistant":
                self._assistant()
            case str(name):
                self._close()
                problem = f"no earlier slot is named {name!r:.60}; {_PLAIN}"
                self._check(name in self.slots, self.tag, problem)
                self.nodes.append(Value(name))
            case _:
                raise self._expected(f"{either(TAGS)}, or a slot's name")

    def _slot(self, slot: Slot) -> None:
        self._close()
        self.slots.setdefault(slot.name, self.tag)
        self.nodes.append(slot)

    def _gen(self) -> Gen:
        name = self._name()
        max_tokens, temperature, regex = 32, None, ""
        stop: list[str] = []
        seen: set[str] = set()
        while word := self._match(_WORD):
            key, at = word[0], word.start()
            problem = f"There is no option {key!r:.60} here: choose {either(OPTIONS)}"
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
                    stop.append(self._filled(key))
                case _:
                    regex = self._filled(key)
        return Gen(name, max_tokens, tuple(stop), temperature, regex)

    def _select(self) -> Select:
        name = self._name()
        at, text = self._string()
        options = text.split("|")
        self._check(len(options) > 1, at, "select needs two options or more, | between them")
        for i, option in enumerate(options):
            self._check(option, at, f"{option!r} is empty")
            self._check(option not in options[:i], at, f"{option!r:.60} is given twice")
        return Select(name, tuple(options))

    def _assistant(self) -> None:
        self._close()
        first = self.user is None
        self.user = self.text[: self.tag].replace(r"\{{", "{{")
        alone = first and not self.slots and self.user.strip()
        problem = f"{{{{assistant}}}} must stand once, behind a text without slots; {_PLAIN}"
        self._check(alone, self.tag, problem)
        self.nodes = []

    def _name(self) -> str:
        at, name = self._string()
        problem = f"{name!r:.60} cannot name a slot: choose another, of letters, digits and _"
        self._check(_WORD.fullmatch(name) and name not in TAGS, at, problem)
        return name

    def _filled(self, key: str) -> str:
        at, text = self._string()
        self._check(text, at, f"{key} is empty")
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

    def _string(self) -> tuple[int, str]:
        match = self._match(_STRING)
        if match:
            return match.start(), _ESCAPE.sub(lambda escape: _ESCAPED[escape[1]], match[1])
        raise self._expected("a string in double quotes")

    def _close(self) -> None:
        if not self._match(_CLOSE):
            raise self._expected("}}")

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """What the pattern finds after any space, which is read in either case."""
        space = _SPACE.match(self.text, self.at)
        self.at = space.end() if space else self.at
        match = pattern.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return match

    def _check(self, fine: object, at: int, problem: str) -> None:
        if not fine:
            raise self._error(at, problem)

    def _expected(self, what: str) -> DerbyError:
        if self.at == len(self.text):
            return self._error(self.tag, f"{{{{ without }}}}; {_PLAIN}")
        rest = self.text[self.at :].partition("\n")[0]
        return self._error(self.at, f"{what} must stand where {rest!r:.20} is; {_PLAIN}")

    def _error(self, at: int, problem: str) -> DerbyError:
        line = self.text.count("\n", 0, at) + 1
        column = at - self.text.rfind("\n", 0, at)
        return DerbyError(f"Line {line}, column {column}: {problem}.")
