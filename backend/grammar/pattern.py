"""A JSON Schema's regular expressions, which are ECMA-262's, in the words of Rust's, in which
llguidance and the judge read them. Both find the same: no dialect of either shines through.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from backend.errors import DerbyError

_LAST = 0x10FFFF
_Ranges = list[tuple[int, int]]

#: What the classes of ECMA-262 hold: Rust's \d, \w and \s hold other characters.
_DIGIT: _Ranges = [(0x30, 0x39)]
_WORD: _Ranges = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
_SPACE: _Ranges = [
    *((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
]
_LINE_ENDS: _Ranges = [(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)]
_CLASSES = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_CONTROLS = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}

_ANYTHING = r"[\x00-\x{10FFFF}]"
_WORD_TEXT = "[0-9A-Z_a-z]"
_BOUNDARY = {
    "b": f"(?:(?<={_WORD_TEXT})(?!{_WORD_TEXT})|(?<!{_WORD_TEXT})(?={_WORD_TEXT}))",
    "B": f"(?:(?<={_WORD_TEXT})(?={_WORD_TEXT})|(?<!{_WORD_TEXT})(?!{_WORD_TEXT}))",
}
_COUNT = re.compile(r"(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})")
_OPENING = re.compile(r"\((?:\?(?::|=|!|<=|<!|i:|<[A-Za-z_$][\w$]*>))?")
_CAPTURE = re.compile(
    r"\\.|\[(?:\\.|[^]\\])*\]?|(?P<open>\((?:\?<(?![=!])(?P<name>[^>]*)>|(?!\?)))", re.DOTALL
)
_HEX = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\}")
_PROPERTY = re.compile(r"[pP]\{[A-Za-z_]+(?:=[A-Za-z_0-9]+)?\}")
_LOW_HALF = re.compile(r"\\u([dD][c-fC-F][0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class Pattern:
    """`exact` matches what the original does. `regular` has no look-around, no back references and
    anchors at its ends alone: where it differs it matches more.
    """

    exact: str
    regular: str


@dataclass(frozen=True, slots=True)
class _Term:
    """A part of a sequence: `text`, or an opening parenthesis and what it encloses."""

    text: str
    count: str = ""
    inner: list[list[_Term]] | None = None
    #: Matches no character, only a place.
    place: bool = False
    refers_back: bool = False


@lru_cache(maxsize=512)
def translated(pattern: str) -> Pattern:
    """Raises DerbyError for what ECMA-262 does not have."""
    reader = _Reader(pattern)
    alternatives = reader.alternatives()
    if reader.at < len(pattern):
        raise reader.wrong("this parenthesis was never opened")
    return Pattern(_exact(alternatives), _regular(alternatives, first=True, last=True))


def _exact(alternatives: list[list[_Term]]) -> str:
    return "|".join(
        "".join(
            term.text + ("" if term.inner is None else _exact(term.inner) + ")") + term.count
            for term in sequence
        )
        for sequence in alternatives
    )


def _regular(alternatives: list[list[_Term]], *, first: bool, last: bool) -> str:
    """`first`, `last`: whether it begins and ends where the whole pattern does."""
    written: list[str] = []
    for sequence in alternatives:
        solid = [index for index, term in enumerate(sequence) if not term.place]
        begin, end = (solid[0], solid[-1]) if solid else (len(sequence), -1)
        parts: list[str] = []
        for index, term in enumerate(sequence):
            if term.refers_back:
                parts.append(f"{_ANYTHING}*")
            elif term.place:
                kept = first and index < begin if term.text == "^" else last and index > end
                parts.append(term.text if term.text in ("^", "$") and kept else "")
            elif term.inner is None:
                parts.append(term.text + term.count)
            else:
                once = not term.count
                inner = _regular(
                    term.inner,
                    first=first and once and index == begin,
                    last=last and once and index == end,
                )
                parts.append(f"{term.text}{inner}){term.count}")
        # llguidance knows "^" before "$" alone.
        written.append("".join(parts if solid else sorted(parts, reverse=True)))
    return "|".join(written)


class _Reader:
    """Reads a pattern from left to right; `at`: the next character."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        captures = [match for match in _CAPTURE.finditer(pattern) if match["open"]]
        self.captures = len(captures)
        self.names = {match["name"]: number for number, match in enumerate(captures, 1)}

    def wrong(self, why: str) -> DerbyError:
        shown = self.pattern if len(self.pattern) <= 60 else self.pattern[:59] + "\u2026"
        return DerbyError(f'Character {self.at + 1} of the pattern "{shown}" is wrong: {why}.')

    def alternatives(self) -> list[list[_Term]]:
        """Up to the end or to a closing parenthesis."""
        read: list[list[_Term]] = [[]]
        while self.at < len(self.pattern) and self.pattern[self.at] != ")":
            if self.pattern[self.at] == "|":
                self.at += 1
                read.append([])
            else:
                read[-1].append(self.term())
        return read

    def term(self) -> _Term:
        """One atom with its count."""
        if _COUNT.match(self.pattern, self.at):
            raise self.wrong("there is nothing in front of it to repeat")
        atom = self.atom()
        count = _COUNT.match(self.pattern, self.at)
        if count is None:
            return atom
        if atom.place:
            raise self.wrong("a place cannot be repeated")
        # Whether it takes few or many first decides nothing about a match.
        self.at = count.end() + self.pattern.startswith("?", count.end())
        return replace(atom, count=count[0])

    def atom(self) -> _Term:
        character = self.pattern[self.at]
        if character == "(":
            return self.group()
        if character == "\\":
            return self.escape()
        self.at += 1
        if character == "[":
            return _Term(self.bracket())
        if character in "^$":
            return _Term(character, place=True)
        if character == ".":
            return _Term(f"[^{_written(_LINE_ENDS)}]")
        return _Term(_quoted(character))

    def group(self) -> _Term:
        opening = _OPENING.match(self.pattern, self.at)
        if opening is None or (opening[0] == "(" and self.pattern.startswith("(?", self.at)):
            raise self.wrong('ECMA-262 has no such group: "(?i:...)" is its way to ignore case')
        start, self.at = self.at, opening.end()
        inner = self.alternatives()
        if self.at == len(self.pattern):
            self.at = start
            raise self.wrong("this parenthesis is never closed")
        self.at += 1
        look = opening[0] in ("(?=", "(?!", "(?<=", "(?<!")
        named = opening[0].endswith(">")
        return _Term("(" if named else opening[0], inner=inner, place=look)

    def escape(self) -> _Term:
        """An escape outside brackets."""
        name = self.pattern[self.at + 1 : self.at + 2]
        if name in _BOUNDARY:
            self.at += 2
            return _Term(_BOUNDARY[name], place=True)
        reference = re.compile(r"\\(?:([1-9][0-9]*)|k<([^>]*)>)").match(self.pattern, self.at)
        if reference:
            number = int(reference[1]) if reference[1] else self.names.get(reference[2], 0)
            if not 1 <= number <= self.captures:
                raise self.wrong("no group has this number or name")
            self.at = reference.end()
            return _Term(rf"(?:\{number})", refers_back=True)
        many = self.shorthand()
        if many is not None:
            return _Term(f"[{many}]")
        return _Term(_quoted(self.character()))

    def shorthand(self) -> str | None:
        r"""What \d, \w, \s, \p{..} or their opposites hold, as in brackets; else None."""
        if (property_ := _PROPERTY.match(self.pattern, self.at + 1)) is not None:
            self.at = property_.end()
            return "\\" + property_[0]
        name = self.pattern[self.at + 1 : self.at + 2]
        if name.lower() not in _CLASSES:
            return None
        self.at += 2
        ranges = _CLASSES[name.lower()]
        return _written(ranges if name.islower() else _others(ranges))

    def character(self) -> str:
        """The character that an escape stands for."""
        text, at = self.pattern, self.at + 1
        name = text[at : at + 1]
        if code := _HEX.match(text, at):
            point, end = int(code[1] or code[2] or code[3], 16), code.end()
            low = _LOW_HALF.match(text, end)
            if low and 0xD800 <= point < 0xDC00:
                point = 0x10000 + (point - 0xD800) * 0x400 + int(low[1], 16) - 0xDC00
                end = low.end()
            if point > _LAST or 0xD800 <= point < 0xE000:
                raise self.wrong("no character has this number")
            self.at = end
            return chr(point)
        if name in _CONTROLS:
            self.at += 2
            return _CONTROLS[name]
        if name == "0" and not text[at + 1 : at + 2].isdigit():
            self.at += 2
            return "\0"
        if name == "c" and text[at + 1 : at + 2].isascii() and text[at + 1 : at + 2].isalpha():
            self.at += 3
            return chr(ord(text[at + 1]) % 32)
        if not name or (name.isascii() and name.isalnum()):
            raise self.wrong(f'ECMA-262 has no "\\{name}": write what it stands for')
        self.at += 2
        return name

    def bracket(self) -> str:
        """What stands in brackets, with them; `at` is behind the first."""
        start = self.at - 1
        negated = self.pattern.startswith("^", self.at)
        self.at += negated
        items: list[str] = []
        while not self.pattern.startswith("]", self.at):
            many, low = self.member()
            if not (self.pattern.startswith("-", self.at) and self.at + 1 < len(self.pattern)):
                items.append(many)
                continue
            if self.pattern.startswith("]", self.at + 1):
                items.append(many)
                continue
            place, self.at = self.at, self.at + 1
            others, high = self.member()
            if not low or not high:  # such as [\w-.]
                items.append(many + r"\-" + others)
            elif low > high:
                self.at = place
                raise self.wrong("the range ends before it begins")
            else:
                items.append(f"{many}-{others}")
        if self.at >= len(self.pattern):
            self.at = start
            raise self.wrong("this bracket is never closed")
        self.at += 1
        if not items:
            return _ANYTHING if negated else rf"[^{_ANYTHING[1:]}"
        return f"[{'^' * negated}{''.join(items)}]"

    def member(self) -> tuple[str, str]:
        """One member of a class as text, and the character that it is, "" for a shorthand."""
        if self.at >= len(self.pattern):
            raise self.wrong("a bracket is never closed")
        if self.pattern[self.at] != "\\":
            character = self.pattern[self.at]
            self.at += 1
        elif self.pattern.startswith("b", self.at + 1):
            character = "\b"
            self.at += 2
        elif (many := self.shorthand()) is not None:
            return many, ""
        else:
            character = self.character()
        return _member(character), character


def _quoted(character: str) -> str:
    """A character outside brackets."""
    return f"\\{character}" if character in r"\.+*?()|[]{}^$" else _printable(character)


def _member(character: str) -> str:
    """A character in brackets; Rust has sets in sets and three operators there."""
    return f"\\{character}" if character in r"\[]^-&~" else _printable(character)


def _printable(character: str) -> str:
    return character if character.isprintable() else rf"\x{{{ord(character):X}}}"


def _written(ranges: _Ranges) -> str:
    return "".join(
        _member(chr(low)) + ("" if low == high else "-" + _member(chr(high)))
        for low, high in ranges
    )


def _others(ranges: _Ranges) -> _Ranges:
    """The characters outside ranges in order."""
    starts = [0, *(high + 1 for _, high in ranges)]
    ends = [*(low - 1 for low, _ in ranges), _LAST]
    return [(low, high) for low, high in zip(starts, ends, strict=True) if low <= high]
