"""The rules of linked grammars in the abstract: which parts follow one another, and what ends."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING

from backend.grammar.lark.text import LarkFile, Statement, Token, parse, plain_name
from backend.grammar.messages import Part, fault
from backend.grammar.schema.endless import endless

if TYPE_CHECKING:
    from llguidance import LLMatcher

#: `%lark` inside `%lark`, and so on.
MAX_DEPTH = 100

#: A regex without any of these matches some text.
_MAY_MATCH_NOTHING = re.compile(r"\[\^|&&|\\[pP]")


@dataclass(frozen=True, slots=True)
class Symbol:
    """A part of an alternative: the texts of rule number `rule`, or else text itself. For text,
    `ends` says whether anything matches it, and `writes` whether a match can have characters.
    """

    at: Token
    rule: int | None = None
    ends: bool = True
    writes: bool = True


@dataclass(slots=True)
class Rule:
    """A rule, or a group inside a rule; a group's `name` is empty."""

    part: Part
    name: str
    at: Token
    alternatives: list[list[Symbol]] = field(default_factory=lambda: [[]])


@dataclass(slots=True)
class _Scope:
    """One Lark text: that of a part, or the text inside `%lark {...}`. It maps the names of rules
    to their numbers.
    """

    part: Part
    lark: LarkFile
    depth: int
    dead: frozenset[str]
    rules: dict[str, int] = field(default_factory=dict[str, int])


def read_rules(parts: Sequence[Part]) -> list[Rule]:
    """The rules that the main grammar's start, number 0, leads to; none if it has no start.

    Names that are unknown count as text. Raises DerbyError for a JSON Schema that never ends.
    """
    return _Reader(parts).rules


class _Reader:
    def __init__(self, parts: Sequence[Part]) -> None:
        self.rules: list[Rule] = []
        self._waiting: list[tuple[int, _Scope, Statement]] = []
        self._scopes: dict[str, _Scope] = {}
        for part in parts:
            if part.text:
                self._scopes[part.name] = self._scope(part, part.text, 0)
            elif why := endless(part.grammar.get("json_schema")):
                raise fault(part, 1, 1, why)
        if main := self._scopes.get(""):
            self._number(main, "start")
        for number, scope, definition in self._waiting:
            self._read(number, scope, definition)

    def _scope(self, part: Part, text: str, depth: int) -> _Scope:
        lark = parse(text)
        return _Scope(part, lark, depth, _dead(lark))

    def _number(self, scope: _Scope, name: str) -> int | None:
        """The number of a rule, which is read later; None if there is no such rule."""
        definition = scope.lark.definitions.get(name)
        if name not in scope.rules and definition:
            scope.rules[name] = self._new(Rule(scope.part, name, definition.at))
            self._waiting.append((scope.rules[name], scope, definition))
        return scope.rules.get(name)

    def _new(self, rule: Rule) -> int:
        self.rules.append(rule)
        return len(self.rules) - 1

    def _read(self, number: int, scope: _Scope, definition: Statement) -> None:
        """Fill a rule's alternatives; groups become rules of their own."""
        outer: list[int] = []
        tokens = iter(scope.lark.body(definition))
        for token in tokens:
            sequence = self.rules[number].alternatives[-1]
            if token.text in ("(", "["):
                group = self._new(Rule(scope.part, "", token))
                sequence.append(Symbol(token, group))
                outer.append(number)
                number = group
            elif token.text in (")", "]") and outer:
                if token.text == "]":
                    self.rules[number].alternatives.append([])
                number = outer.pop()
            elif token.text == "|":
                self.rules[number].alternatives.append([])
            elif token.text == "->":
                next(tokens, None)
            elif token.text in ("?", "*", "{", "~"):
                if (token.text in ("?", "*") or _may_be_none(next(tokens, None))) and sequence:
                    self._make_optional(scope, sequence)
            elif token.kind not in ("operator", "number", "newline"):
                sequence.append(self._symbol(scope, token))

    def _make_optional(self, scope: _Scope, sequence: list[Symbol]) -> None:
        last = sequence.pop()
        sequence.append(Symbol(last.at, self._new(Rule(scope.part, "", last.at, [[last], []]))))

    def _symbol(self, scope: _Scope, token: Token) -> Symbol:
        if token.kind == "rule":
            return Symbol(token, self._number(scope, plain_name(token)))
        if token.kind == "reference":
            other = self._scopes.get(token.text.removeprefix("@"))
            return Symbol(token, self._number(other, "start") if other else None)
        if token.kind == "inline":
            return Symbol(token, self._inline(scope, token))
        empty = token.kind == "string" and token.text.startswith('""')
        return Symbol(token, ends=token.text not in scope.dead, writes=not empty)

    def _inline(self, scope: _Scope, token: Token) -> int | None:
        if token.text.startswith("%json"):
            try:
                schema = json.loads(token.text.removeprefix("%json"))
            except (ValueError, RecursionError):
                return None
            if why := endless(schema):
                raise fault(scope.part, token.line, token.column, why)
        if not token.text.startswith("%lark") or "{" not in token.text:
            return None
        if scope.depth == MAX_DEPTH:
            why = f"%lark is nested more than {MAX_DEPTH} deep: use rules for the inner ones"
            raise fault(scope.part, token.line, token.column, why)
        opening = token.text.index("{") + 1
        blank = re.sub(r"[^\n]", " ", token.text[:opening])
        place = "\n" * (token.line - 1) + " " * (token.column - 1)
        inner = self._scope(scope.part, place + blank + token.text[opening:-1], scope.depth + 1)
        return self._number(inner, "start")


def _may_be_none(after: Token | None) -> bool:
    """Whether a count, `{` or `~` and what comes `after`, begins at zero."""
    return after is None or after.text == "," or not after.text.strip("+-0")


def _dead(lark: LarkFile) -> frozenset[str]:
    """The terminals, and the regexes in rules, that match no text."""
    regexes = {token.text for token in lark.tokens if token.kind == "regex"}
    odd = sorted(text for text in regexes if _MAY_MATCH_NOTHING.search(text))
    if not odd and not any(token.text in ("&", "~") for token in lark.tokens):
        return frozenset()
    terminals = {n: d for n, d in lark.definitions.items() if d.at.kind == "terminal"}
    lines = [_line(lark, each) for each in (*terminals.values(), *lark.imports)]
    asked = [*terminals, *odd]
    words = [f"{n:05}" for n in range(len(asked))]
    choices = [f'"{word}" {what}' for word, what in zip(words, asked, strict=True)]
    text = "\n".join([*lines, "start: " + "\n | ".join(choices)])
    grammar = json.dumps({"grammars": [{"lark_grammar": text}]})
    return frozenset(compress(asked, _dead_after(grammar, words)))


def _line(lark: LarkFile, statement: Statement) -> str:
    return lark.text[statement.at.start : lark.tokens[statement.end - 1].end].rstrip()


def _dead_after(definition: str, words: Sequence[str]) -> list[bool]:
    """For each text: whether the grammar, in llguidance's JSON, begins with it and never goes on.

    All False if the grammar does not compile.
    """
    from llguidance import LLMatcher, LLTokenizer

    matcher = LLMatcher(LLTokenizer("byte"), definition, log_level=0)
    if matcher.is_error():
        return [False] * len(words)
    return [_is_dead(matcher.deep_copy(), word) for word in words]


def _is_dead(matcher: LLMatcher, word: str) -> bool:
    read = matcher.try_consume_tokens(list(word.encode())) == len(word.encode())
    matcher.compute_bitmask()
    # Any other reason is that it was too much work to find out.
    return read and matcher.is_error() and matcher.stop_reason() == "InternalError"
