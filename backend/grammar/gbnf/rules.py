"""GBNF's rules as values, and as the text of Lark rules."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

#: Code points, as ranges with both ends.
Class = tuple[tuple[int, int], ...]

#: The last code point.
LAST = 0x10FFFF

#: Halves of pairs in UTF-16: no characters.
SURROGATES = 0xD800, 0xDFFF
#: Inside a class: no character at all.
_NOTHING = r"^\s\S"

#: How often the part before a sign may stand: at least, and at most unless that is None.
COUNTS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@dataclass(slots=True)
class Item:
    """Part of a sequence, `low` to `high` times: a rule, or a group, or characters in a row.

    `lexeme` is the Lark for all of it that `find_lexemes` has found to be as good.
    """

    rule: str = ""
    classes: tuple[Class, ...] = ()
    group: Sequences | None = None
    low: int = 1
    high: int | None = 1
    lexeme: str = ""

    @property
    def repeats(self) -> bool:
        """True if it may occur more than once in a row."""
        return self.high is None or self.high > 1


#: A rule's or a group's alternatives.
Sequences = list[list[Item]]


@dataclass(slots=True)
class Rule:
    """`name ::= body`, which begins at text[start]."""

    name: str
    start: int
    body: Sequences = field(default_factory=lambda: [[]])


def lark_names(names: Collection[str]) -> dict[str, str]:
    """A Lark rule's name for each of GBNF's: `start` for `root`, the same one where Lark allows."""
    found = {name: name for name in names if _is_plain(name)} | {"root": "start"}
    taken = {*found.values()}
    for name in names:
        if name not in found:
            other = ("" if name[0].isalpha() else "r") + name.lower()
            while other in taken:
                other += "_"
            taken.add(other)
            found[name] = other
    return found


def _is_plain(name: str) -> bool:
    return name[0].isalpha() and name.islower() and name != "start"


def written(body: Sequences, names: Mapping[str, str]) -> str:
    """The alternatives in Lark, every character by itself but in an item's `lexeme`."""
    texts = (" ".join(_item(item, names) for item in sequence) for sequence in body)
    return " | ".join(text or '""' for text in texts)


def _item(item: Item, names: Mapping[str, str]) -> str:
    if item.lexeme:
        return item.lexeme
    if item.high == 0:
        return '""'
    if item.rule:
        text = names[item.rule]
    elif item.group is not None:
        text = f"({written(item.group, names)})"
    else:
        text = " ".join(map(character, item.classes)) or '""'
        text = f"({text})" if len(item.classes) > 1 else text
    return text + count(item.low, item.high)


def complement(ranges: Collection[tuple[int, int]]) -> Class:
    """All characters outside the ranges. Surrogates are none."""
    found: list[tuple[int, int]] = []
    at = 0
    for low, high in sorted([*ranges, SURROGATES]):
        if at < low:
            found.append((at, low - 1))
        at = max(at, high + 1)
    return (*found, (at, LAST)) if at <= LAST else tuple(found)


def character(points: Class) -> str:
    """One character in Lark; nothing matches if there are no points."""
    if len(points) == 1 and points[0][0] == points[0][1]:
        return quoted(chr(points[0][0]))
    pieces = (_point(low) + (f"-{_point(high)}" if low != high else "") for low, high in points)
    return f"/[{''.join(pieces) or _NOTHING}]/"


def quoted(text: str) -> str:
    """A text in Lark."""
    if not text.isprintable():
        return "/" + "".join(map(_point, map(ord, text))) + "/"
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _point(point: int) -> str:
    plain = chr(point).isascii() and chr(point).isalnum()
    return chr(point) if plain else f"\\x{{{point:X}}}"


def count(low: int, high: int | None) -> str:
    """A repetition in Lark."""
    if (low, high) == (1, 1):
        return ""
    for sign, counts in COUNTS.items():
        if counts == (low, high):
            return sign
    return f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"
