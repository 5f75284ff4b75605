"""Converts llama.cpp's GBNF to Lark.

GBNF spells texts character by character. Lark's lexemes take as many characters as they can, so
`"a"* "ab"` as lexemes would never match "aab". Therefore each character is a separate lexeme,
unless `find_lexemes` shows that a longer one makes no difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from backend.errors import DerbyError
from backend.grammar.gbnf.lexemes import find_lexemes
from backend.grammar.gbnf.rules import (
    COUNTS,
    Class,
    Item,
    Rule,
    Sequences,
    complement,
    lark_names,
    written,
)
from backend.grammar.messages import TITLES, wrong

#: Parentheses inside parentheses.
MAX_DEPTH = 100
#: Highest count in braces.
MAX_COUNT = 1000

_TOKEN = re.compile(
    r"""
      (?P<skip>[ \t]+|\#[^\r\n]*)
    | (?P<newline>[\r\n]+)
    | (?P<define>::=)
    | (?P<name>[A-Za-z0-9_-]+)
    | (?P<text>"(?>(?:\\.|[^"\\])*)")
    | (?P<class>\[(?>(?:\\.|[^\]\\])*)\])
    | (?P<count>[*+?]|\{\s*(?P<low>[0-9]+)\s*(?:(?P<comma>,)\s*(?P<high>[0-9]+)?\s*)?\})
    | (?P<special>!?<[^<>\n]*>)
    | (?P<mark>[()|.])
    """,
    re.VERBOSE | re.DOTALL,
)
_CHARACTER = re.compile(
    r'\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([nrt"\[\]\\-]))|[^\\]', re.DOTALL
)
_NAMED = {"n": 10, "r": 13, "t": 9}
_UNFINISHED = {
    '"': "this quote has no end",
    "[": "this bracket has no end",
    "{": "this is not a count such as {3}, {3,} or {0,3}",
}
_ANY: Class = ((0, 0x10FFFF),)


def gbnf_to_lark(text: str, called: str = TITLES["gbnf"]) -> str:
    """The same texts as a Lark grammar; each rule is on the line it was on, `root` is `start`.

    Raises DerbyError, in which the file is `called` that, with line and column for what is wrong
    and for what cannot be converted: tokens of one model's vocabulary.
    """
    rules = _Reader(text, called).rules()
    terminals = find_lexemes(rules)
    names = lark_names(rules)
    lines: list[list[str]] = [[] for _ in range(text.count("\n") + 1)]
    for name, rule in rules.items():
        line = text.count("\n", 0, rule.start)
        lines[line].append(f"{names[name]}: {written(rule.body, names)}")
    return "\n".join(["\n".join(line) for line in lines] + terminals)


class _Reader:
    def __init__(self, text: str, called: str) -> None:
        self._text = text
        self._called = called
        self._tokens = [*self._scan()]
        self._at = 0
        self._mentions: list[re.Match[str]] = []

    def rules(self) -> dict[str, Rule]:
        """The rules by name, in their order. Raises DerbyError at a fault."""
        found: dict[str, Rule] = {}
        while self._skip_lines():
            head = self._tokens[self._at]
            after = self._tokens[self._at + 1 : self._at + 2]
            if head.lastgroup != "name" or not after or after[0].lastgroup != "define":
                raise self._wrong(head.start(), "a rule was expected, as in 'name ::= \"text\"'")
            if head[0] in found:
                raise self._wrong(head.start(), f"the rule {head[0]!r} is defined twice")
            self._at += 2
            self._skip_lines()
            found[head[0]] = Rule(head[0], head.start(), self._body())
        for mention in self._mentions:
            if mention[0] not in found:
                raise self._wrong(mention.start(), f"there is no rule {mention[0]!r}")
        if "root" not in found:
            raise DerbyError(f"{self._called} is wrong: it has no rule 'root' to begin with.")
        return found

    def _scan(self) -> Iterator[re.Match[str]]:
        at = 0
        while at < len(self._text):
            found = _TOKEN.match(self._text, at)
            if not found:
                character = self._text[at]
                why = _UNFINISHED.get(character, f"{character!r} has no meaning here")
                raise self._wrong(at, why)
            at = found.end()
            if found.lastgroup != "skip":
                yield found

    def _wrong(self, start: int, why: str) -> DerbyError:
        line = self._text.count("\n", 0, start) + 1
        return wrong(self._called, line, start - self._text.rfind("\n", 0, start), why)

    def _skip_lines(self) -> bool:
        """True unless only line breaks were left."""
        while self._at < len(self._tokens) and self._tokens[self._at].lastgroup == "newline":
            self._at += 1
        return self._at < len(self._tokens)

    def _body(self) -> Sequences:
        """The alternatives up to the end of the line, which does not count in parentheses."""
        stack: list[Sequences] = [[[]]]
        opened: list[int] = []
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            if token.lastgroup == "newline" and not opened:
                break
            self._at += 1
            if token[0] == "|":
                stack[-1].append([])
                self._skip_lines()
            elif token[0] == "(":
                group: Sequences = [[]]
                stack[-1][-1].append(Item(group=group))
                stack.append(group)
                opened.append(token.start())
                if len(opened) > MAX_DEPTH:
                    why = (
                        f"parentheses are more than {MAX_DEPTH} deep: use rules for the inner ones"
                    )
                    raise self._wrong(token.start(), why)
            elif token[0] == ")":
                if not opened:
                    raise self._wrong(token.start(), "this closing parenthesis has no opening one")
                opened.pop()
                stack.pop()
            elif token.lastgroup != "newline":
                self._take(token, stack[-1][-1])
        if opened:
            raise self._wrong(opened[-1], "this parenthesis has no end")
        return stack[0]

    def _take(self, token: re.Match[str], sequence: list[Item]) -> None:
        """Add what the token means to the end of the sequence."""
        if token.lastgroup == "count":
            self._repeat(token, sequence)
        elif token.lastgroup == "text":
            points = self._points(token.start() + 1, token.end() - 1)
            sequence.append(Item(classes=tuple(((point, point),) for _, point in points)))
        elif token.lastgroup == "class":
            sequence.append(Item(classes=(self._class(token),)))
        elif token[0] == ".":
            sequence.append(Item(classes=(_ANY,)))
        elif token.lastgroup == "name":
            self._mentions.append(token)
            sequence.append(Item(rule=token[0]))
        elif token.lastgroup == "special":
            why = f"{token[0]} is a token of one model's vocabulary, not a text: spell it as a text"
            raise self._wrong(token.start(), why)
        else:
            raise self._wrong(token.start(), "a rule must begin on its own line")

    def _repeat(self, token: re.Match[str], sequence: list[Item]) -> None:
        if not sequence:
            raise self._wrong(token.start(), f"there is nothing before {token[0]} to repeat")
        item = sequence[-1]
        if (item.low, item.high) != (1, 1):
            raise self._wrong(token.start(), "this repeats a repetition: put that in parentheses")
        if token[0] in COUNTS:
            item.low, item.high = COUNTS[token[0]]
            return
        low, high = token["low"], token["high"] or ("" if token["comma"] else token["low"])
        if max(len(low), len(high)) > 4 or max(int(low), int(high or 0)) > MAX_COUNT:
            raise self._wrong(token.start(), f"a count is above the limit of {MAX_COUNT}: lower it")
        if high and int(high) < int(low):
            raise self._wrong(token.start(), f"{low} is more than {high}: swap them")
        item.low, item.high = int(low), int(high) if high else None

    def _points(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """(where it is written, code point) of each character of a text or a class."""
        while start < end:
            found = _CHARACTER.match(self._text, start, end)
            if not found:
                written = self._text[start : start + 2]
                raise self._wrong(start, f"{written!r} is not an escape, or it is cut short")
            digits = found[1] or found[2] or found[3]
            literal = _NAMED.get(found[4] or "", ord(found[0][-1]))
            point = int(digits, 16) if digits else literal
            if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
                raise self._wrong(start, f"{found[0]} is not a character")
            yield start, point
            start = found.end()

    def _class(self, token: re.Match[str]) -> Class:
        negated = token[0].startswith("[^")
        points = [*self._points(token.start() + 1 + negated, token.end() - 1)]
        ranges: list[tuple[int, int]] = []
        at = 0
        while at < len(points):
            start, low = points[at]
            # An escaped hyphen is written as a backslash.
            hyphen = at + 2 < len(points) and self._text[points[at + 1][0]] == "-"
            high = points[at + 2][1] if hyphen else low
            if high < low:
                raise self._wrong(start, "this range begins with its larger end: swap the ends")
            ranges.append((low, high))
            at += 3 if hyphen else 1
        if not ranges:
            raise self._wrong(token.start(), "this class has no characters")
        return complement(ranges) if negated else tuple(ranges)
