"""What reads an untrusted grammar takes steps in proportion to its length, whatever its shape.

A step is a line of Python that runs, as `sys.settrace` tells: the same on every machine and every
time, with each turn of a loop counted. Not counted is what a line does natively: regular
expressions, which are possessive or atomic, and the engine, which only the sandbox's deadline
bounds.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from math import log2
from types import FrameType
from typing import Any

import pytest

from backend.errors import DerbyError
from backend.grammar.checks.endless_schema import endless
from backend.grammar.checks.productive import require_productive
from backend.grammar.checks.scan import scan
from backend.grammar.definition import parts_of
from backend.grammar.gbnf.convert import gbnf_to_lark
from backend.grammar.sources import MAX_BYTES, GrammarSource, Kind

SIZES = (4, 8, 16, 64)
#: Sizes between which growth is told: smaller ones are mostly what does not grow.
SMALL, LARGE = 8, 64
#: How much more than n log n is taken for noise, and the steps that are too few to tell: those that
#: the search for GBNF's lexemes may take in the smallest grammar (see `_LEAST_STEPS`).
TOLERANCE = 1.5
FEW = {"gbnf": 800_000, "other": 4000}

#: A text of n parts; the largest, of 64, is nearly as long as a grammar may be.
Shape = Callable[[int], str]


def rows(row: Callable[[int], str], count: int, end: str = "") -> str:
    return "\n".join([*map(row, range(count)), end])


def tower(opening: str, inner: str, closing: str, depth: int) -> str:
    return opening * depth + inner + closing * depth


def defined(count: int, link: Callable[[int], Any], end: Any, **root: Any) -> str:
    links = {f"a{i}": link(i) for i in range(count)} | {f"a{count}": end}
    return json.dumps({"$defs": links, "$ref": "#/$defs/a0", **root})


def ref(number: int) -> dict[str, str]:
    return {"$ref": f"#/$defs/a{number}"}


NULL = {"type": "null"}

LARK: dict[str, Shape] = {
    "nested groups": lambda n: "start: " + tower("(", '"a"', ")", n),
    "nested options": lambda n: "start: " + tower("[", '"a"', "]*", n),
    "groups in a row": lambda n: "start: " + '("a" | "b")? ' * 15 * n,
    "nullable chain": lambda n: (
        "start: a0\n" + rows(lambda i: f"a{i}: a{i + 1}? a{i + 1}?", 10 * n)
    ),
    "long alternation": lambda n: "start: " + " | ".join(f'"{i}"' for i in range(20 * n)),
    "deep references": lambda n: "start: a0\n" + rows(lambda i: f"a{i}: a{i + 1}", 14 * n),
    "backward references": lambda n: (
        rows(lambda i: f"a{i + 1}: a{i}", 14 * n, f"start: a{14 * n}") + '\na0: "x"'
    ),
    "a cycle": lambda n: "start: a0\n" + rows(lambda i: f"a{i}: a{(i + 1) % (14 * n)}", 14 * n),
    "rules that never end": lambda n: "start: a0\n" + rows(lambda i: f'a{i}: "x" a{i}', 13 * n),
    "every rule needs many": lambda n: (
        "start: a0\n" + rows(lambda i: f"a{i}: " + " ".join(f"a{j * 7 % n}" for j in range(50)), n)
    ),
    "big counts": lambda n: "start: " + '"a"{1000} ' * 20 * n,
    "comments": lambda n: "// ////\n" * 28 * n + 'start: "a"',
    "an open quote": lambda n: 'start: "' + "a" * 240 * n,
    "slashes": lambda n: "start: " + "/" * 240 * n,
    "quotes": lambda n: "start: " + '"' * (240 * n + 1),
    "escapes": lambda n: 'start: "' + "\\\\" * 120 * n + '"',
    "line breaks": lambda n: "\n" * 230 * n + 'start: "a"',
    "short rules": lambda n: rows(lambda i: f'a{i}: "x"', 20 * n, "start: a0"),
    "the same rule": lambda n: 'start: "a"\n' * 21 * n,
    "aliases": lambda n: "start: " + "\n  | ".join(f'"{i}" -> a{i}' for i in range(11 * n)),
    "inline JSON": lambda n: "start: " + '%json {"type": "null"} ' * 10 * n,
    "open inline JSON": lambda n: "start: " + '%json {"' * 30 * n,
    "complements": lambda n: "start: A0\n" + rows(lambda i: f'A{i}: ~"{i}"', 10 * n),
    "imports": lambda n: (
        rows(lambda i: f"%import common.INT -> A{i}", 8 * n, "start: A0")
    ),
    "imported terminals": lambda n: (
        rows(lambda i: f"%import .json.STRING -> A{i}", 7 * n, "start: A0")
    ),
    "inner grammars": lambda n: "start: " + '%lark { start: "a" } ' * 11 * n,
}  # fmt: skip
GBNF: dict[str, Shape] = {
    "empty texts": lambda n: (
        "root ::= " + " | ".join(["r0+"] * 40 * n) + "\n"
        + rows(lambda i: f"r{i} ::= r{i + 1} r{i + 1} r{i + 1}", 18, 'r18 ::= ""')
    ),
    "literals that may meet": lambda n: "root ::= " + " | ".join(f'"a{i}"+' for i in range(24 * n)),
    "a chain": lambda n: (
        "root ::= r0\n" + rows(lambda i: f"r{i} ::= r{i + 1}", 15 * n, f"r{15 * n} ::= [a]")
    ),
    "a chain backwards": lambda n: (
        "r0 ::= [a]+\n" + rows(lambda i: f"r{i + 1} ::= r{i}", 15 * n, f"root ::= r{15 * n}")
    ),
    "nested parentheses": lambda n: "root ::= " + tower("(", '"ab"', ")*", n),
    "a class of many": lambda n: "root ::= [" + "abcdefgh-km-z" * 18 * n + "]+",
    "counts of one rule": lambda n: (
        "root ::= " + " ".join(f"r{{1,{i + 1}}}" for i in range(20 * n))
        + "\nr ::= " + "c " * 60 + "\nc ::= [" + "acegikm" * 5 * n + "]"
    ),
    "empty alternatives": lambda n: "root ::= " + "|" * 240 * n,
    "an open text": lambda n: 'root ::= "' + "a" * 240 * n,
    "small repetitions": lambda n: "root ::= " + "[a]+ [b]* " * 24 * n,
}  # fmt: skip
SCHEMAS: dict[str, Shape] = {
    "a ladder of references": lambda n: defined(
        3 * n, lambda i: {"allOf": [ref(i + 1), ref(i + 1)]}, NULL
    ),
    "a ring of references": lambda n: defined(6 * n, lambda i: ref((i + 1) % (6 * n)), NULL),
    "a tower of anyOf": lambda n: tower('{"anyOf":[', '{"type":"null"}', "]}", n),
    "arrays in arrays": lambda n: tower('{"items":', '{"type":"null"}', "}", n),
    "many properties": lambda n: json.dumps({"properties": {f"{i}": {} for i in range(20 * n)}}),
    "all required": lambda n: json.dumps(
        {"type": "object", "required": [f"{i}" for i in range(25 * n)], "minProperties": 30 * n}
    ),
    "an enum": lambda n: json.dumps({"enum": [*range(35 * n)]}),
    "patterns": lambda n: json.dumps({"anyOf": [{"pattern": "(a|b){9}"}] * 9 * n}),
    "many branches": lambda n: json.dumps({"oneOf": [{"const": i} for i in range(14 * n)]}),
    "prefix items": lambda n: json.dumps({"prefixItems": [{}] * 50 * n, "minItems": 99 * n}),
}  # fmt: skip
REGEXES: dict[str, Shape] = {
    "nested groups": lambda n: tower("(", "a", ")", n),
    "classes": lambda n: "[a-z]" * 45 * n,
    "nested classes": lambda n: tower("[", "a", "]", n),
    "counts": lambda n: "a{1,9}" * 40 * n,
    "backslashes": lambda n: "\\\\" * 120 * n,
}
KINDS: dict[Kind, dict[str, Shape]] = {
    "lark": LARK, "gbnf": GBNF, "json_schema": SCHEMAS, "regex": REGEXES,
}  # fmt: skip
CASES: list[tuple[Kind, str]] = [(kind, name) for kind, shapes in KINDS.items() for name in shapes]


@contextmanager
def counted() -> Iterator[list[int]]:
    """One number, once it is over: how many lines of Python have run inside."""
    count, steps = 0, [0]

    def trace(_frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if event == "line":
            count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield steps
    finally:
        sys.settrace(before)
        steps[0] = count


def steps_of(kind: Kind, text: str) -> dict[str, int]:
    """How many steps each reading of a grammar takes, up to the one that refuses it."""
    source = GrammarSource(kind, text, "hostile")
    found: dict[str, int] = {}
    with suppress(DerbyError):
        with counted() as steps, suppress(DerbyError):
            scan(text, kind)
        found["scan"] = steps[0]
        if kind == "gbnf":
            with counted() as steps:
                gbnf_to_lark(text)
            found["gbnf"] = steps[0]
        if kind == "json_schema":
            with counted() as steps:
                endless(json.loads(text))
            found["endless"] = steps[0]
        with counted() as steps:
            parts = parts_of.__wrapped__(source)
        if kind != "gbnf":
            found["link"] = steps[0]
        with counted() as steps, suppress(DerbyError):
            require_productive(parts)
        found["productive"] = steps[0]
    return found


def bound(steps: int, size: int, larger: int, few: int) -> float:
    """What n log n from `size` on allows at a `larger` one."""
    return few + TOLERANCE * steps * larger * log2(larger) / (size * log2(size))


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_reading_takes_n_log_n_steps(kind: Kind, name: str) -> None:
    """Of GBNF's empty texts, 18 rows took 3^18 steps."""
    texts = {size: KINDS[kind][name](size) for size in SIZES}
    assert len(texts[LARGE].encode()) <= MAX_BYTES
    found = {size: steps_of(kind, text) for size, text in texts.items()}
    for reading in found[LARGE]:
        few = FEW["gbnf" if reading == "gbnf" else "other"]
        for size, larger in [(SMALL, LARGE), *pairwise(SIZES)]:
            taken = found[larger].get(reading, 0)
            assert taken <= bound(found[size][reading], size, larger, few), (reading, larger, found)


def test_there_are_enough_shapes_and_they_grow() -> None:
    assert len(CASES) >= 40
    for kind, name in CASES:
        shape = KINDS[kind][name]
        assert len(shape(LARGE)) > 5 * len(shape(SMALL)), name


def test_the_bar_would_tell() -> None:
    """What takes n squared steps is refused, and what takes n log n is not."""

    def work(turns: int) -> None:
        for _ in range(turns):
            pass

    for turns, kept in ((lambda n: 100 * n * n, False), (lambda n: int(1000 * n * log2(n)), True)):
        steps: dict[int, int] = {}
        for size in (SMALL, LARGE):
            with counted() as found:
                work(turns(size))
            steps[size] = found[0]
        assert (steps[LARGE] <= bound(steps[SMALL], SMALL, LARGE, FEW["other"])) == kept
