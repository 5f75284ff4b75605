"""Finds texts and repetitions of a GBNF grammar that may be lexemes without changing its language.

If every character is a lexeme, llguidance's parser takes a step for each, which is hundreds of
times slower than one long lexeme. But its lexer is greedy: it continues while any lexeme can. That
is exact if the following holds wherever one text leads to two places of the grammar: the lexeme at
one place cannot continue with a character that may follow the lexeme that ends at the other. Where
this cannot be shown, the lexeme is split into characters.

The places are the states of an automaton that accepts every text of the grammar, and more: it
returns from a rule to every place that uses the rule, and does not count beyond one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import product
from operator import or_
from typing import NamedTuple

from backend.grammar.fixpoints import least
from backend.grammar.gbnf.rules import Class, Item, Rule, Sequences, quoted, written

#: Of one lexeme: characters as they are written, groups and rules in each other, and copies of one
#: character by counts in each other. Then rounds of taking apart.
_MAX_POSITIONS = 64
_MAX_DEPTH = 20
_MAX_COPIES = 2000
_MAX_ROUNDS = 8
#: Steps that all of this may take for a grammar's every part, and for a small one.
_STEPS_EACH = 40
_LEAST_STEPS = 50_000


def find_lexemes(rules: Mapping[str, Rule]) -> list[str]:
    """Set the items' `lexeme` where that is exact, and return the Lark lines that define the
    lexemes. The work is linear in the rules' size. Where more work would be needed, every character
    is a lexeme.
    """
    items = _items(rule.body for rule in rules.values())
    parts = sum(1 + sum(map(len, item.classes)) for item in items)
    budget = _Budget(_LEAST_STEPS + _STEPS_EACH * parts)
    apart: set[int] = set()
    try:
        for _ in range(_MAX_ROUNDS):
            automaton = _Automaton(rules, apart, budget)
            found = automaton.conflicts()
            if not found:
                return _write(rules, automaton.lexemes)
            apart |= found
    except _TooLargeError:
        pass
    return []


class _TooLargeError(Exception):
    """More than is worth looking into."""


class _Budget:
    """Steps that are left: a loop's every turn spends one."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def spend(self, steps: int = 1) -> None:
        """Take steps away. Raises _TooLargeError when there are none left."""
        self._left -= steps
        if self._left < 0:
            raise _TooLargeError


class _Arc(NamedTuple):
    """A step to another state by a character, in the lexeme of the item with that id, or by itself
    if that is 0.
    """

    points: Class
    target: int
    lexeme: int


@dataclass(frozen=True, slots=True)
class _After:
    """What may follow a character. `key` tells `arcs` from those of other states. `inside` is a bit
    mask of the characters that continue its lexeme, `beyond` of those that follow the lexeme.
    """

    key: int
    arcs: list[_Arc]
    inside: int = 0
    beyond: int = 0


class _Within(NamedTuple):
    """Where in an item's lexeme another one stands: behind how many arcs of the automaton in all,
    in how many items, and counted how often.
    """

    item: int
    arcs: int
    depth: int = 0
    copies: int = 1


class _Automaton:
    """`lexemes` are the items that have one, by id. A state is left by arcs, or freely, without a
    character, or to a rule, or from one; lexemes, and characters by themselves, end in `_exits`.
    """

    def __init__(self, rules: Mapping[str, Rule], apart: set[int], budget: _Budget) -> None:
        """`apart` are ids of items that have no lexeme; those that cannot have one are put in."""
        self.lexemes: dict[int, Item] = {}
        self._rules = rules
        self._apart = apart
        self._budget = budget
        self._free: list[list[int]] = []
        self._calls: list[list[tuple[int, int]]] = []
        self._returns: list[list[int]] = []
        self._arcs: list[list[_Arc]] = []
        self._arc_count = 0
        self._exits: set[int] = set()
        # Without recursion, that is: the least fixpoint of having only such rules inside.
        self._regular = least([(name, _rules_in([rule.body])) for name, rule in rules.items()])
        self._ends = {name: (self._state(), self._state()) for name in rules}
        for name, rule in rules.items():
            self._add_body(rule.body, *self._ends[name], None)
        self._pass_over_what_may_be_nothing()
        self._masks = _masks({arc.points for arcs in self._arcs for arc in arcs}, budget)
        self._known: dict[int, _After] = {}

    def conflicts(self) -> set[int]:
        """The items whose lexemes must be split into characters. Raises _TooLargeError."""
        found: set[int] = set()
        start = self._after(self._ends["root"][0])
        seen, waiting = {(start.key, start.key)}, [(start, start)]
        for one, other in waiting:
            for a, b in product(one.arcs, other.arcs):
                self._budget.spend()
                if not self._masks[a.points] & self._masks[b.points]:
                    continue
                first, second = self._after(a.target), self._after(b.target)
                if first.beyond & second.inside:
                    found.add(b.lexeme)
                if (first.key, second.key) not in seen:
                    seen.add((first.key, second.key))
                    waiting.append((first, second))
        return found

    def _after(self, state: int) -> _After:
        if state not in self._known:
            key, passed = state, 0
            while self._leads_on(key) and passed < len(self._free):
                key, passed = self._free[key][0], passed + 1
            self._budget.spend(passed)
            reached = [state] if state in self._exits else self._reached(state)
            inside = [] if state in self._exits else self._leaving(reached)
            exits = [end for end in reached if end in self._exits]
            beyond = [arc for end in exits for arc in self._leaving(self._reached(end))]
            masks = self._mask(inside), self._mask(beyond)
            self._known[state] = _After(key, [*inside, *beyond], *masks)
        return self._known[state]

    def _mask(self, arcs: Iterable[_Arc]) -> int:
        return reduce(or_, (self._masks[arc.points] for arc in arcs), 0)

    def _leaving(self, states: Iterable[int]) -> list[_Arc]:
        return [arc for state in states for arc in self._arcs[state]]

    def _leads_on(self, state: int) -> bool:
        """True if a state is left in one way only, which is free."""
        others = (self._arcs, self._calls, self._returns)
        return len(self._free[state]) == 1 and not any(table[state] for table in others)

    def _reached(self, state: int) -> list[int]:
        """The states that are reached freely, not past an exit but from it.

        Where a rule is begun on the way, it is not left: `_free` passes over what may be nothing.
        """
        found, seen = [(state, True)], {(state, True)}
        for at, leaving in found:
            self._budget.spend(1 + len(self._arcs[at]))
            if at in self._exits and at != state:
                continue
            after = [(each, leaving) for each in self._free[at]]
            after += [(begin, False) for begin, _ in self._calls[at]]
            after += [(each, True) for each in self._returns[at] if leaving]
            found += [each for each in dict.fromkeys(after) if each not in seen]
            seen.update(after)
        return list(dict.fromkeys(at for at, _ in found))

    def _pass_over_what_may_be_nothing(self) -> None:
        """Let a state be left freely at a rule that may be empty."""
        ways = [(state, [after]) for state, found in enumerate(self._free) for after in found]
        calls = [(state, call) for state, found in enumerate(self._calls) for call in found]
        finishes: list[tuple[int, list[int]]] = [(finish, []) for _, finish in self._ends.values()]
        nothing = least([*ways, *((state, [*call]) for state, call in calls), *finishes])
        for state, (begin, end) in calls:
            if begin in nothing:
                self._free[state].append(end)

    def _state(self) -> int:
        self._budget.spend()
        for table in (self._free, self._calls, self._returns, self._arcs):
            table.append([])
        return len(self._free) - 1

    def _add_body(self, body: Sequences, start: int, end: int, within: _Within | None) -> None:
        for sequence in body:
            at = start
            for item in sequence:
                after = self._state()
                self._add(item, at, after, within)
                at = after
            self._free[at].append(end)

    def _add(self, item: Item, start: int, end: int, within: _Within | None) -> None:
        """Add an item between two states, as a lexeme if it can be one and is in none itself."""
        self._budget.spend(1 + sum(map(len, item.classes)))
        if item.low == 0:
            self._free[start].append(end)
        if item.high == 0 or (within is None and self._add_lexeme(item, start, end)):
            return
        if within is not None:
            copies = within.copies * (item.high or max(1, item.low))
            within = within._replace(depth=within.depth + 1, copies=copies)
            positions = self._arc_count - within.arcs
            if within.depth > _MAX_DEPTH or copies > _MAX_COPIES or positions > _MAX_POSITIONS:
                raise _TooLargeError
        if item.repeats:
            first, last = self._state(), self._state()
            self._free[start].append(first)
            self._free[last] += [first, end]
            start, end = first, last
        self._add_once(item, start, end, within)

    def _add_once(self, item: Item, start: int, end: int, within: _Within | None) -> None:
        if item.group is not None:
            self._add_body(item.group, start, end, within)
        elif item.rule and within is None:
            begin, finish = self._ends[item.rule]
            self._calls[start].append((begin, end))
            self._returns[finish].append(end)
        elif item.rule:
            if item.rule not in self._regular:
                raise _TooLargeError
            self._add_body(self._rules[item.rule].body, start, end, within)
        else:
            for points in item.classes:
                after = self._state()
                self._arcs[start].append(_Arc(points, after, within.item if within else 0))
                self._arc_count += 1
                if within is None:
                    self._exits.add(after)
                start = after
            self._free[start].append(end)

    def _add_lexeme(self, item: Item, start: int, end: int) -> bool:
        """Add an item, once or more, as a lexeme. Joins nothing and returns False if it is none."""
        if id(item) in self._apart or not (item.repeats or len(item.classes) > 1):
            return False
        first, last = self._state(), self._state()
        try:
            self._add(_at_least_once(item), first, last, _Within(id(item), self._arc_count))
            may_be_nothing = last in self._reached(first)
        except _TooLargeError:
            may_be_nothing = True
        if may_be_nothing:
            self._apart.add(id(item))
            return False
        self.lexemes[id(item)] = item
        self._exits.add(last)
        self._free[start].append(first)
        self._free[last].append(end)
        return True


def _at_least_once(item: Item) -> Item:
    return Item(item.rule, item.classes, item.group, max(1, item.low), item.high)


def _write(rules: Mapping[str, Rule], lexemes: Mapping[int, Item]) -> list[str]:
    """Set the items' `lexeme`. The terminals that these name, and those of the rules inside."""
    inner = {name: f"R{number}" for number, name in enumerate(rules)}
    names: dict[str, str] = {}
    for item in lexemes.values():
        text = written([[_at_least_once(item)]], inner)
        if item.repeats:
            item.lexeme = names.setdefault(text, f"T{len(names)}") + ("" if item.low else "?")
        else:
            item.lexeme = quoted("".join(chr(low) for ((low, _),) in item.classes))
            item.lexeme += "" if item.low else "?"
    used = dict.fromkeys(_rules_in([[item]] for item in lexemes.values()))
    waiting = list(used)
    for name in waiting:
        waiting += [rule for rule in _rules_in([rules[name].body]) if rule not in used]
        used |= dict.fromkeys(waiting)
    lines = [f"{inner[name]}: {written(rules[name].body, inner)}" for name in used]
    return lines + [f"{name}: {text}" for text, name in names.items()]


def _items(bodies: Iterable[Sequences]) -> Iterator[Item]:
    """All items of some bodies, those in groups too."""
    waiting = [item for body in bodies for sequence in body for item in sequence]
    for item in waiting:
        yield item
        waiting += [inner for sequence in item.group or () for inner in sequence]


def _rules_in(bodies: Iterable[Sequences]) -> list[str]:
    """The rules that bodies name, each once."""
    return list(dict.fromkeys(item.rule for item in _items(bodies) if item.rule))


def _masks(classes: Iterable[Class], budget: _Budget) -> dict[Class, int]:
    """The characters of each class as a bit mask. A bit stands for a range of characters that each
    class contains either completely or not at all.
    """
    edges = sorted({edge for points in classes for low, high in points for edge in (low, high + 1)})
    number = {edge: n for n, edge in enumerate(edges)}
    masks: dict[Class, int] = {}
    for points in classes:
        budget.spend(len(points))
        ranges = ((1 << number[high + 1]) - (1 << number[low]) for low, high in points)
        masks[points] = reduce(or_, ranges, 0)
    return masks
