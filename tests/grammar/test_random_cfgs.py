"""Masks of random context-free grammars equal the verdicts of a recogniser written for this."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from walks import EOS, Vocabulary, allowed

from backend.grammar.constraint import GrammarConstraint
from backend.grammar.sources import GrammarSource

#: Terminals as Lark writes them. No text of one begins a text of another, or a longer one of its
#: own, so that there is one way to cut a text into them.
SEPARATE = ('"a"', '"ba"', '"bca"', "/bc*a/", "/bb[ab]?c/", '"cb"', "/c+b/", "/c[ac]b/")
#: llguidance cuts these as lexers do: a terminal goes on for as long as any that may stand there
#: could, even where only a shorter one leads on to a text of the grammar.
TANGLED = ('"a"', '"b"', '"ca"', '"ab"', '"abc"', '"bc"', "/a+/", "/[ab]/", "/b[bc]*/", "/ab?c?/")
#: Inside "a+" followed by "a", which no text ends, llguidance's search for forced bytes never ends
#: either, nor gives way to a deadline: without this line it would hang the test.
UNFORCED = '%llguidance {"no_forcing": true}\n'

LONGER = (b"ab", b"bca", b"cb", b"aa", b"abc", b"bbc", b"cca", b"ad")
VOCABULARY = Vocabulary(*LONGER)
CANDIDATES = [*b"abcd\n", 0xC3, *range(EOS + 1, EOS + 1 + len(LONGER))]
STEPS = 8
LONGEST = 12

WORDS = ["".join(letters) for n in range(5) for letters in itertools.product("abc", repeat=n)]


@lru_cache(maxsize=1 << 18)
def matches(terminal: str, text: str) -> bool:
    return re.fullmatch(terminal[1:-1], text) is not None


@lru_cache(maxsize=1 << 18)
def begins(terminal: str, text: str) -> bool:
    """True for the beginning of a text of the terminal: two letters can complete each of ours."""
    return any(matches(terminal, text + word) for word in WORDS if len(word) < 3)


@dataclass(frozen=True)
class Piece:
    """A terminal, a rule's name or a group of alternatives, once or as `times` says."""

    what: "str | tuple[Sequence_, ...]"
    times: str

    def __str__(self) -> str:
        return (self.what if isinstance(self.what, str) else f"({written(self.what)})") + self.times


Sequence_ = tuple[Piece, ...]
Plain = dict[str, list[tuple[str, ...]]]


def written(alternatives: Sequence[Sequence_]) -> str:
    return " | ".join(" ".join(map(str, pieces)) for pieces in alternatives)


@dataclass(frozen=True)
class Grammar:
    rules: Mapping[str, tuple[Sequence_, ...]]
    tangled: bool

    def __str__(self) -> str:
        lines = [f"{name}: {written(alternatives)}\n" for name, alternatives in self.rules.items()]
        return UNFORCED * self.tangled + "".join(lines)

    def constraint(self) -> GrammarConstraint:
        return VOCABULARY.constraint(GrammarSource("lark", str(self), "drawn"))

    def plain(self) -> Plain:
        """The same without repetitions and groups. First alternatives never lead in a circle."""
        rules: Plain = {}
        for name, alternatives in self.rules.items():
            rules[name] = [_flat(pieces, rules) for pieces in alternatives]
        return rules


def _flat(pieces: Sequence_, rules: Plain) -> tuple[str, ...]:
    return tuple(_symbol(piece, rules) for piece in pieces)


def _symbol(piece: Piece, rules: Plain) -> str:
    """A terminal or the name of a rule, made if need be, that stands for the piece."""
    symbol = piece.what
    if not isinstance(symbol, str):
        bodies = [_flat(pieces, rules) for pieces in symbol]
        symbol = f"_{len(rules)}"
        rules[symbol] = bodies
    if not piece.times:
        return symbol
    name = f"_{len(rules)}"
    more = (symbol,) if piece.times == "?" else (symbol, name)
    rules[name] = [(symbol,) if piece.times == "+" else (), more]
    return name


_TIMES = st.sampled_from(("", "", "", "", "?", "*", "+"))
_NUMBERS = st.integers(0, 59)
_GROUPS = st.lists(
    st.lists(st.tuples(_NUMBERS, _TIMES), min_size=1, max_size=2), min_size=1, max_size=2
)
_SEQUENCES = st.lists(
    st.tuples(st.one_of(*[_NUMBERS] * 9, _GROUPS), _TIMES), min_size=1, max_size=3
)
_BACK = st.lists(st.tuples(_NUMBERS, _TIMES), min_size=1, max_size=2)
#: Alternatives that lead on, and one that may lead back: with more, texts have more readings than
#: llguidance's limits allow. A number stands for a symbol, since a strategy made on the way costs
#: more than all that is drawn from it.
_RULES = st.tuples(st.lists(_SEQUENCES, min_size=1, max_size=2), st.lists(_BACK, max_size=1))


def _named(shape: Sequence[Any], symbols: Sequence[str]) -> tuple[Sequence_, ...]:
    def piece(what: Any, times: str) -> Piece:
        number = isinstance(what, int)
        return Piece(symbols[what % len(symbols)] if number else _named(what, symbols), times)

    return tuple(tuple(piece(*drawn) for drawn in pieces) for pieces in shape)


@st.composite
def grammars(draw: st.DrawFn) -> Grammar:
    """Every rule ends some text: its first alternatives name only rules that come later."""
    tangled = draw(st.booleans())
    pool = TANGLED if tangled else SEPARATE
    terminals = [pool[i % len(pool)] for i in draw(st.lists(_NUMBERS, min_size=2, max_size=4))]
    shapes = draw(st.lists(_RULES, min_size=2, max_size=5))
    names = ["start", "p", "q", "r", "s"][: len(shapes)]
    return Grammar(
        {
            name: _named(onward, [*terminals, *names[i + 1 :]]) + _named(back, [*terminals, *names])
            for i, (name, (onward, back)) in enumerate(zip(names, shapes, strict=True))
        },
        tangled,
    )


#: A place between the symbols of an alternative, and after how many characters that was begun.
Item = tuple[int, int]
#: Items by the symbol that they go on with, "" where they are read to the end.
Row = dict[str, set[Item]]


class Recogniser:
    """Earley's algorithm on characters; with `longest`, terminals are cut as lexers cut them."""

    def __init__(self, rules: Plain, *, longest: bool) -> None:
        self._longest = longest
        self._rows: dict[str, Row] = {}
        self._cuts: dict[str, Sequence[int]] = {}
        #: By place: the symbol that follows it there, and the rule.
        self._places: list[tuple[str, str]] = []
        self._begun: dict[str, list[int]] = {name: [] for name in rules}
        for name, bodies in rules.items():
            for body in bodies:
                self._begun[name].append(len(self._places))
                self._places += [(symbol, name) for symbol in (*body, "")]

    def accepts(self, text: str) -> bool:
        ended = self.row(text).get("", ())
        return any(not origin and self._places[at][1] == "start" for at, origin in ended)

    def viable(self, text: str) -> bool:
        """True for the beginning of a text of the grammar, as every rule ends some text."""
        return bool(self.row(text)) or any(self._goes_on(text, i) for i in self._starts(text))

    def row(self, text: str) -> Row:
        """What may have been read if a terminal ends, or the text begins, after `text`."""
        if text not in self._rows:
            read = [
                (at + 1, origin)
                for i in self._starts(text)
                for terminal, items in self.row(text[:i]).items()
                if terminal and terminal not in self._begun and matches(terminal, text[i:])
                for at, origin in items
            ]
            begun = [(at, 0) for at in self._begun["start"]]
            self._rows[text] = self._closed(text, read if text else begun)
        return self._rows[text]

    def _goes_on(self, text: str, start: int) -> bool:
        wanted = self.row(text[:start])
        return any(
            symbol and symbol not in self._begun and begins(symbol, text[start:])
            for symbol in wanted
        )

    def _starts(self, text: str) -> Sequence[int]:
        """Where the last terminal of `text` may have begun."""
        if not self._longest or not text:
            return range(len(text))
        if text not in self._cuts:
            starts = (*self._starts(text[:-1]), len(text) - 1)
            self._cuts[text] = [s for s in starts if self._goes_on(text, s)][:1]
        return self._cuts[text]

    def _closed(self, text: str, items: list[Item]) -> Row:
        """With all that begins or ends here, too."""
        here, row, empty = len(text), Row(), set[str]()
        while items:
            at, origin = items.pop()
            symbol, name = self._places[at]
            if (at, origin) in row.setdefault(symbol, set()):
                continue
            row[symbol].add((at, origin))
            if symbol in self._begun:
                items += [(first, here) for first in self._begun[symbol]]
                items += [(at + 1, origin)] * (symbol in empty)
            elif not symbol:
                above = row if origin == here else self.row(text[:origin])
                items += [(up + 1, begun) for up, begun in above.get(name, ())]
                empty |= {name} if origin == here else set()
        return row


def _firsts(tokens: Sequence[int]) -> set[bytes]:
    return {VOCABULARY.tokens[token][:1] for token in tokens}


def derived(rules: Plain, rng: Random) -> str:
    """A text of the grammar: free choices at first, then first alternatives only."""
    text, ahead, free = "", ["start"], 8
    while ahead:
        symbol = ahead.pop()
        if symbol in rules:
            free -= 1
            body = rng.choice(rules[symbol]) if free >= 0 else rules[symbol][0]
            ahead += reversed(body)
        else:
            text += rng.choice([word for word in WORDS if matches(symbol, word)])
    return text


# The same thousand each time: a grammar that shows a new fault of llguidance's should turn up when
# its version changes or these tests do, not in somebody's unrelated change. Both checks share them,
# for drawing a grammar takes longer than either.
@settings(max_examples=1000, deadline=None, derandomize=True)
@given(grammars(), st.randoms(use_true_random=True))
def test_masks_allow_exactly_what_the_language_does_and_its_texts_are_accepted(
    grammar: Grammar, rng: Random
) -> None:
    rules = grammar.plain()
    check_masks(grammar, rules, rng)
    check_derived(grammar, rules, rng)


def check_masks(grammar: Grammar, rules: Plain, rng: Random) -> None:
    """Along a walk through what is allowed, every mask is the recogniser's."""
    language = Recogniser(rules, longest=False)
    exact = Recogniser(rules, longest=True) if grammar.tangled else language
    constraint = grammar.constraint()
    text = ""
    for _ in range(STEPS):
        tokens = allowed(constraint)
        following = {t: text + VOCABULARY.tokens[t].decode("latin-1") for t in CANDIDATES}
        viable = [t for t in CANDIDATES if exact.viable(following[t])]
        expected = sorted(viable + [EOS] * exact.accepts(text))
        # Where one text must follow, llguidance allows its first token alone if no other token
        # could spell more of it.
        forced = constraint.forced(1)
        assert tokens == expected or (tokens == [*forced] and len(_firsts(expected)) == 1), text
        assert tokens, text
        assert set(tokens) <= set(expected), text
        assert all(language.viable(following[t]) for t in viable), text
        assert language.accepts(text) or EOS not in tokens, text
        assert constraint.finished() == (tokens == [EOS]), text
        token = rng.choice(tokens)
        constraint.advance([token])
        if token == EOS:
            return
        text = following[token]


def check_derived(grammar: Grammar, rules: Plain, rng: Random) -> None:
    """A text of the language is accepted. Of a long one the beginning: all may have more readings
    than llguidance's limits allow.
    """
    text = derived(rules, rng)
    cut = Recogniser(rules, longest=True)
    constraint = grammar.constraint()
    read = VOCABULARY.read(constraint, text.encode(), rng, limit=LONGEST)
    whole = read == len(text)
    assert cut.viable(text[:read]), text
    assert whole or read >= LONGEST or (grammar.tangled and not cut.viable(text[: read + 1])), text
    if whole:
        assert (EOS in allowed(constraint)) == cut.accepts(text), text
        assert grammar.tangled or cut.accepts(text), text
