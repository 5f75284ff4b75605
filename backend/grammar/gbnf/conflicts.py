"""Where lexemes of a GBNF grammar would hide texts from each other, all sets rounded up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from backend.grammar.checks.fixpoints import least
from backend.grammar.gbnf.budget import Budget, TooLargeError
from backend.grammar.gbnf.rules import Class, Item, Rule, Sequences, character

#: The bit masks are as wide.
_MAX_LEXEMES = 600


@dataclass(slots=True)
class Lexeme:
    """The positions of its characters: their classes, what follows each, the first and the last.

    Sets of positions are bit masks. A repetition counts as one without an upper limit.
    """

    text: str = ""
    classes: list[Class] = field(default_factory=list[Class])
    follow: list[int] = field(default_factory=list[int])
    first: int = 0
    last: int = 0

    def add(self, points: Class) -> int:
        """Add a position; its bit."""
        self.classes.append(points)
        self.follow.append(0)
        return 1 << len(self.classes) - 1

    def join(self, last: int, first: int) -> None:
        """Let the positions `first` follow each of `last`."""
        for position in bits(last):
            self.follow[position] |= first


def bits(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def conflicts(
    rules: Mapping[str, Rule], lexeme_of: Callable[[Item], Lexeme | None], budget: Budget
) -> set[str]:
    """The lexemes, by their texts, that must be taken apart if `lexeme_of` tells which there are.

    One that, after a text of another that may stand there too, goes on with a character that may
    come after that other. Raises TooLargeError for more than `budget` allows.
    """
    grammar = _Grammar(rules, lexeme_of, budget)
    found: set[str] = set()
    for a, others in enumerate(grammar.meeting()):
        after = 0
        budget.spend(1 + grammar.after[a].bit_count() + others.bit_count())
        for b in bits(grammar.after[a]):
            after |= grammar.characters(grammar.lexemes[b], grammar.lexemes[b].first)
        for b in bits(others):
            one, other = grammar.lexemes[a], grammar.lexemes[b]
            if other.text not in found and grammar.compared(one, other).more & after:
                found.add(other.text)
    return found


class _Compared(NamedTuple):
    """Whether some text is both lexemes; how the second can go on where the first may end."""

    same: bool
    more: int


class _Grammar:
    """The rules as productions: symbols from 0 on are rules and groups, ~n is lexeme n.

    A lexeme is one place in the rules. `after[n]` are those, as a bit mask, that may come next.
    """

    def __init__(
        self, rules: Mapping[str, Rule], lexeme_of: Callable[[Item], Lexeme | None], budget: Budget
    ) -> None:
        self._budget = budget
        self.lexemes: list[Lexeme] = []
        self._lexeme_of = lexeme_of
        self._compared: dict[tuple[str, str], _Compared] = {}
        self._rules = {name: number for number, name in enumerate(rules)}
        self._size = len(rules)
        self._productions: list[tuple[int, list[int]]] = []
        for name, rule in rules.items():
            self._add_body(self._rules[name], rule.body)
        self._masks = _masks(self.lexemes)
        self._nullable = least([p for p in self._productions if min(p[1], default=0) >= 0])
        self._first = [0] * self._size
        self._repeat_until_stable(self._extend_first)
        self._follow = [0] * self._size
        self.after = [0] * len(self.lexemes)
        self._repeat_until_stable(self._extend_follow)

    def meeting(self) -> list[int]:
        """For each lexeme those, as a bit mask, that may come next at the same time."""
        meeting = [0] * len(self.lexemes)
        waiting: list[tuple[int, int]] = []

        def meet(some: int, others: int) -> None:
            self._budget.spend(1 + some.bit_count())
            for a in bits(some):
                for b in bits(others & ~meeting[a]):
                    self._budget.spend()
                    meeting[a] |= 1 << b
                    meeting[b] |= 1 << a
                    waiting.append((a, b))

        begin = self._first[self._rules["root"]]
        meet(begin, begin)
        for a, b in waiting:
            if self.compared(self.lexemes[a], self.lexemes[b]).same:
                meet(self.after[a], self.after[b])
        return meeting

    def compared(self, a: Lexeme, b: Lexeme) -> _Compared:
        """The two compared, but once."""
        if (a.text, b.text) not in self._compared:
            self._compared[a.text, b.text] = self._compare(a, b)
        return self._compared[a.text, b.text]

    def characters(self, lexeme: Lexeme, positions: int) -> int:
        """The characters at some positions, as a bit mask in which a bit is a range of them."""
        mask = 0
        self._budget.spend(positions.bit_count())
        for position in bits(positions):
            mask |= self._masks[lexeme.text][position]
        return mask

    def _compare(self, a: Lexeme, b: Lexeme) -> _Compared:
        seen: set[tuple[int, int]] = set()
        same, more = False, 0
        ours, theirs = self._masks[a.text], self._masks[b.text]
        waiting = [(a.first, b.first)]
        for firsts, seconds in waiting:
            self._budget.spend(firsts.bit_count() * seconds.bit_count())
            for p, q in product(bits(firsts), bits(seconds)):
                if (p, q) in seen or not ours[p] & theirs[q]:
                    continue
                seen.add((p, q))
                waiting.append((a.follow[p], b.follow[q]))
                if a.last >> p & 1:
                    same = same or bool(b.last >> q & 1)
                    more |= b.follow[q]
        return _Compared(same, self.characters(b, more))

    def _new(self) -> int:
        self._size += 1
        return self._size - 1

    def _add_body(self, head: int, body: Sequences) -> None:
        for sequence in body:
            symbols = [symbol for item in sequence for symbol in self._symbols(item)]
            self._productions.append((head, symbols))

    def _symbols(self, item: Item) -> list[int]:
        found = self._lexeme_of(item)
        if found and item.repeats:
            return [self._counted([self._lexeme(found)], optional=item.low == 0, repeats=False)]
        if found:
            once = [self._lexeme(found)]
        elif item.rule:
            once = [self._rules[item.rule]]
        elif item.group is not None:
            once = [self._new()]
            self._add_body(once[0], item.group)
        else:
            once = [self._lexeme(_one(points)) for points in item.classes]
        if item.high == 0:
            return []
        if (item.low, item.high) == (1, 1):
            return once
        return [self._counted(once, optional=item.low == 0, repeats=item.repeats)]

    def _counted(self, once: list[int], *, optional: bool, repeats: bool) -> int:
        number = self._new()
        self._productions.append((number, once))
        if optional:
            self._productions.append((number, []))
        if repeats:
            self._productions.append((number, [*once, number]))
        return number

    def _lexeme(self, lexeme: Lexeme) -> int:
        if len(self.lexemes) == _MAX_LEXEMES:
            raise TooLargeError
        self.lexemes.append(lexeme)
        return ~(len(self.lexemes) - 1)

    def _repeat_until_stable(self, step: Callable[[], bool]) -> None:
        while step():
            pass

    def _extend_first(self) -> bool:
        changed = False
        for head, symbols in self._productions:
            self._budget.spend(1 + len(symbols))
            mask = self._first[head]
            for symbol in symbols:
                mask |= self._first[symbol] if symbol >= 0 else 1 << ~symbol
                if symbol not in self._nullable:
                    break
            changed |= mask != self._first[head]
            self._first[head] = mask
        return changed

    def _extend_follow(self) -> bool:
        changed = False
        for head, symbols in self._productions:
            self._budget.spend(1 + len(symbols))
            behind = self._follow[head]
            for symbol in reversed(symbols):
                table, at = (self._follow, symbol) if symbol >= 0 else (self.after, ~symbol)
                changed |= table[at] | behind != table[at]
                table[at] |= behind
                first = self._first[symbol] if symbol >= 0 else 1 << ~symbol
                behind = first | (behind if symbol in self._nullable else 0)
        return changed


def _one(points: Class) -> Lexeme:
    return Lexeme(character(points), [points], [0], 1, 1)


def _masks(lexemes: Collection[Lexeme]) -> dict[str, list[int]]:
    """By a lexeme's text, the characters at each position as a bit mask.

    A bit stands for a range of characters that is in each class as a whole or not at all.
    """
    classes = {points for lexeme in lexemes for points in lexeme.classes}
    edges = sorted({edge for points in classes for low, high in points for edge in (low, high + 1)})
    number = {edge: n for n, edge in enumerate(edges)}
    masks: dict[Class, int] = {}
    for points in classes:
        mask = 0
        for low, high in points:
            mask |= (1 << number[high + 1]) - (1 << number[low])
        masks[points] = mask
    return {lexeme.text: [masks[points] for points in lexeme.classes] for lexeme in lexemes}
