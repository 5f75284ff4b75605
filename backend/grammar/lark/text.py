"""Lark grammars as tokens and definitions: what linking and checking need, without recursion."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from backend.errors import DerbyError


@dataclass(frozen=True, slots=True)
class Token:
    """One token: `text` is text[start:end]; line and column count characters from 1.

    `kind` is the name of a group in `_TOKEN`, or "unreadable". `%json`, `%regex`, `%llguidance` and
    `%lark` are one token with their body, kind "inline".
    """

    kind: str
    text: str
    start: int
    line: int
    column: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True, slots=True)
class Statement:
    """A definition, given by the token of its name, or `%import`. `tokens[body:end]` are the tokens
    after that, or after the colon.
    """

    at: Token
    body: int
    end: int


@dataclass(frozen=True, slots=True)
class LarkFile:
    """A grammar's text, split into definitions. If a name is defined twice, the first definition
    counts. `unreadable` is the token at which the text stops being Lark; nothing after it is known.
    """

    text: str
    tokens: tuple[Token, ...]
    definitions: dict[str, Statement]
    imports: tuple[Statement, ...]
    unreadable: Token | None

    def body(self, statement: Statement) -> tuple[Token, ...]:
        """The tokens that follow a definition's colon or a directive."""
        return self.tokens[statement.body : statement.end]


#: Atomic groups, so that a quote left open costs one look at the rest of the text.
_TOKEN = re.compile(
    r"""
      (?P<skip>(?:\#|//)[^\n]*|[ \t]+)
    | (?P<newline>(?:\r?\n)+)
    | (?P<rule>!?[_?]?[a-z][_a-z0-9\-]*)
    | (?P<terminal>_?[A-Z][_A-Z0-9\-]*)
    | (?P<string>"(?>(?:\\.|[^"\\\n])*)"i?)
    | (?P<regex>/(?>(?:\\.|[^/\\])+)/[imslux]*)
    | (?P<inline>%(?:json|regex|llguidance|lark)\b)
    | (?P<directive>%[a-z]+)
    | (?P<special><[^<>\s]+>)
    | (?P<reference>@[a-zA-Z0-9_\-]+)
    | (?P<number>[+-]?[0-9]+(?:\.[0-9]+)?)
    | (?P<operator>->|\.\.|[:=,.(){}\[\]~|&+*?])
    """,
    re.VERBOSE,
)
_IN_JSON = re.compile(r'"(?>(?:\\.|[^"\\])*)"|[^"{}]+|[{}]', re.DOTALL)


def tokenize(text: str) -> list[Token]:
    """All tokens except blanks and comments. The last one is "unreadable" if the text is
    not Lark.
    """
    tokens: list[Token] = []
    at, line, line_start = 0, 1, 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        kind, end = "unreadable", len(text)
        if found and found.lastgroup:
            kind, end = found.lastgroup, found.end()
        if kind == "inline" and (end := _inline_end(text, end)) < 0:
            kind, end = "unreadable", len(text)
        if kind != "skip":
            tokens.append(Token(kind, text[at:end], at, line, at - line_start + 1))
        breaks = text.count("\n", at, end)
        if breaks:
            line, line_start = line + breaks, text.rindex("\n", at, end) + 1
        at = end
    return tokens


def _inline_end(text: str, at: int) -> int:
    """Where the braces that open after an inline directive close; `at` if none open, -1 if open."""
    lark = text.endswith("lark", 0, at)
    blank = re.compile(r"\s*").match(text, at)
    opening = blank.end() if blank else at
    if not text.startswith("{", opening):
        return at
    depth, at = 0, opening
    while found := (_TOKEN if lark else _IN_JSON).match(text, at):
        at = found.end()
        depth += (found[0] == "{") - (found[0] == "}")
        if depth == 0:
            return at
    return -1


def regex_literal(pattern: str) -> str:
    """Write a regular expression as Lark does, between slashes.

    Raises DerbyError for one that ends in half an escape.
    """
    from llguidance import regex_to_lark

    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        raise DerbyError(
            f"The regular expression {pattern!r:.80} ends in a single backslash, which escapes "
            "nothing: remove it, or write two for a backslash."
        )
    return f"/{regex_to_lark(pattern)}/"


def plain_name(token: Token) -> str:
    """The name of a rule or terminal without the marks that may precede it."""
    return token.text.removeprefix("!").removeprefix("?")


@lru_cache(maxsize=64)
def parse(text: str) -> LarkFile:
    """Split a grammar into definitions, as far as it is Lark. What is malformed is left to
    llguidance.
    """
    tokens = tokenize(text)
    definitions: dict[str, Statement] = {}
    imports: list[Statement] = []
    for first, end in pairwise([*_statement_starts(tokens), len(tokens)]):
        head = tokens[first]
        if head.text == "%import":
            imports.append(Statement(head, first + 1, end))
        elif head.kind in ("rule", "terminal") and (colon := _colon(tokens, first, end)):
            definitions.setdefault(plain_name(head), Statement(head, colon + 1, end))
    return LarkFile(
        text=text,
        tokens=tuple(tokens),
        definitions=definitions,
        imports=tuple(imports),
        unreadable=tokens[-1] if tokens and tokens[-1].kind == "unreadable" else None,
    )


def _statement_starts(tokens: Sequence[Token]) -> list[int]:
    """The tokens that begin a line and do not go on with the one before, as `|` does."""
    starts: list[int] = []
    depth = 0
    fresh = True
    for i, token in enumerate(tokens):
        if token.kind == "newline":
            fresh = True
            continue
        if fresh and (depth == 0 or _defines(tokens, i)) and token.text != "|":
            starts.append(i)
            depth = 0
        fresh = False
        depth = max(0, depth + (token.text in ("(", "[")) - (token.text in (")", "]")))
    return starts


def _defines(tokens: Sequence[Token], at: int) -> bool:
    """True for a definition's name or a directive: they end what a parenthesis left open."""
    after = tokens[at + 1].text if at + 1 < len(tokens) else ""
    return tokens[at].kind == "directive" or (
        tokens[at].kind in ("rule", "terminal") and after == ":"
    )


def _colon(tokens: Sequence[Token], first: int, end: int) -> int:
    """The position of a definition's colon, after its attributes if it has any; 0 if there
    is none.
    """
    return next((i for i in range(first + 1, end) if tokens[i].text == ":"), 0)
