"""Which texts and repetitions of a GBNF grammar may be lexemes without changing its language.

With a lexeme a character, llguidance takes a parser's step for each, hundreds of times slower than
following one long lexeme. But its lexer is greedy: it goes on while any lexeme can. That is exact
if, wherever two lexemes may both come next, the one cannot go on, after a text of the other, with
a character that may come after the other. Where that cannot be shown, the one is taken apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from backend.grammar.checks.fixpoints import least
from backend.grammar.gbnf.budget import Budget, TooLargeError
from backend.grammar.gbnf.conflicts import Lexeme, conflicts
from backend.grammar.gbnf.rules import Item, Rule, Sequences, character, count, quoted

#: Characters in one lexeme, groups and rules in each other in it, copies of one character by counts
#: in each other, and rounds of taking apart.
_MAX_POSITIONS = 64
_MAX_DEPTH = 20
_MAX_COPIES = 2000
_MAX_ROUNDS = 8
#: Steps that all of this may take for a grammar's every part, and for a small one.
_STEPS_EACH = 100
_LEAST_STEPS = 50_000
#: Characters of all lexemes together: a rule that has a long one may be written out many times.
_MAX_TEXTS = 1 << 16


def find_lexemes(rules: Mapping[str, Rule]) -> list[str]:
    """Set the items' `lexeme` where that is exact; the Lark lines that define what these name.

    The work is linear in the rules' size: where more is needed, every character stands alone.
    """
    budget = Budget(_LEAST_STEPS + _STEPS_EACH * sum(_size(rule.body) for rule in rules.values()))
    chooser = _Chooser(rules, budget)
    try:
        for _ in range(_MAX_ROUNDS):
            found = conflicts(rules, chooser.lexeme_of, budget)
            if not found:
                return chooser.write()
            chooser.apart |= found
    except TooLargeError:
        pass
    return []


class _Piece(NamedTuple):
    """Part of a lexeme: whether it may be nothing, and the positions it begins and ends with."""

    nullable: bool = True
    first: int = 0
    last: int = 0


class _Chooser:
    def __init__(self, rules: Mapping[str, Rule], budget: Budget) -> None:
        self.apart: set[str] = set()
        self._budget = budget
        self._texts = Budget(_MAX_TEXTS)
        self._rules = rules
        self._known: dict[int, Lexeme | None] = {}
        # Without recursion, that is: the least fixpoint of having only such rules inside.
        self._regular = least(
            [
                (rule.name, [item.rule for item in _items(rule.body) if item.rule])
                for rule in rules.values()
            ]
        )

    def lexeme_of(self, item: Item) -> Lexeme | None:
        """The lexeme for an item once, or if it repeats for once or more; None if it has none."""
        if id(item) not in self._known:
            self._known[id(item)] = self._lexeme(item) if _is_worth_it(item) else None
        found = self._known[id(item)]
        return None if found is None or found.text in self.apart else found

    def write(self) -> list[str]:
        """Set all items' `lexeme`; the terminals that these name."""
        names: dict[str, str] = {}
        waiting = [rule.body for rule in self._rules.values()]
        for body in waiting:
            for item in (item for sequence in body for item in sequence):
                found = self.lexeme_of(item)
                if found and item.repeats:
                    name = names.setdefault(found.text, f"T{len(names)}")
                    item.lexeme = name + ("" if item.low else "?")
                elif found:
                    item.lexeme = found.text + count(item.low, item.high)
                elif item.group is not None:
                    waiting.append(item.group)
        return [f"{name}: {text}" for text, name in names.items()]

    def _lexeme(self, item: Item) -> Lexeme | None:
        once = Item(item.rule, item.classes, item.group)
        built = Lexeme()
        try:
            piece = self._add(built, once, 0, item.high or max(1, item.low))
            built.text = self._text(once) + (
                count(max(1, item.low), item.high) if item.repeats else ""
            )
            self._texts.spend(len(built.text))
        except TooLargeError:
            return None
        if piece.nullable:
            return None
        built.first, built.last = piece.first, piece.last
        if item.repeats:
            built.join(piece.last, piece.first)
        return built

    def _add(self, built: Lexeme, item: Item, depth: int, copies: int) -> _Piece:
        """Put an item's positions into a lexeme."""
        self._budget.spend(1 + sum(map(len, item.classes)))
        copies *= item.high or max(1, item.low)
        if depth > _MAX_DEPTH or len(built.classes) > _MAX_POSITIONS or copies > _MAX_COPIES:
            raise TooLargeError
        if item.high == 0:
            return _Piece()
        if item.rule or item.group is not None:
            rows = [
                self._row(built, (self._add(built, inner, depth + 1, copies) for inner in sequence))
                for sequence in self._body(item)
            ]
            piece = _Piece(any(row.nullable for row in rows), 0, 0)
            for row in rows:
                piece = _Piece(piece.nullable, piece.first | row.first, piece.last | row.last)
        else:
            bits = (built.add(points) for points in item.classes)
            piece = self._row(built, (_Piece(nullable=False, first=bit, last=bit) for bit in bits))
        if item.repeats:
            built.join(piece.last, piece.first)
        return piece._replace(nullable=piece.nullable or item.low == 0)

    def _row(self, built: Lexeme, pieces: Iterable[_Piece]) -> _Piece:
        """Pieces one after the other."""
        row = _Piece()
        for piece in pieces:
            self._budget.spend(row.last.bit_count())
            built.join(row.last, piece.first)
            row = _Piece(
                row.nullable and piece.nullable,
                row.first | (piece.first if row.nullable else 0),
                piece.last | (row.last if piece.nullable else 0),
            )
        return row

    def _body(self, item: Item) -> Sequences:
        if item.rule and item.rule not in self._regular:
            raise TooLargeError
        return item.group if item.group is not None else self._rules[item.rule].body

    def _text(self, item: Item) -> str:
        """An item as part of a Lark terminal; it has been found to be small."""
        if item.high == 0:
            return '""'
        if item.rule or item.group is not None:
            rows = (" ".join(map(self._text, row)) or '""' for row in self._body(item))
            return f"({' | '.join(rows)}){count(item.low, item.high)}"
        if all(len(points) == 1 and points[0][0] == points[0][1] for points in item.classes):
            text = quoted("".join(chr(points[0][0]) for points in item.classes))
        else:
            text = character(item.classes[0])
        return text + count(item.low, item.high)


def _is_worth_it(item: Item) -> bool:
    return item.repeats or len(item.classes) > 1


def _items(body: Sequences) -> Iterator[Item]:
    """All items of a body, those in groups too."""
    waiting = [item for sequence in body for item in sequence]
    for item in waiting:
        yield item
        waiting += [inner for sequence in item.group or () for inner in sequence]


def _size(body: Sequences) -> int:
    """How many items a body has, and ranges in their classes."""
    return sum(1 + sum(map(len, item.classes)) for item in _items(body))
