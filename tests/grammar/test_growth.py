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
from backend.grammar.definition import parts_of
from backend.grammar.gbnf.convert import gbnf_to_lark
from backend.grammar.lark.productive import require_productive
from backend.grammar.lark.text import parse
from backend.grammar.schema.endless import endless
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


SHAPES: dict[tuple[Kind, str], Shape] = {
    ("lark", "nested options"): lambda n: "start: " + tower("[", '"a"', "]*", n),
    ("lark", "groups in a row"): lambda n: "start: " + '("a" | "b")? ' * 15 * n,
    ("lark", "a chain"): lambda n: (
        "start: a0\n" + rows(lambda i: f"a{i}: a{i + 1}? a{i + 1}?", 10 * n)
    ),
    ("lark", "a chain backwards"): lambda n: (
        rows(lambda i: f"a{i + 1}: a{i}", 14 * n, f"start: a{14 * n}") + '\na0: "x"'
    ),
    ("lark", "rules that never end"): lambda n: (
        "start: a0\n" + rows(lambda i: f'a{i}: "x" a{i}', 13 * n)
    ),
    ("lark", "every rule needs many"): lambda n: (
        "start: a0\n" + rows(lambda i: f"a{i}: " + " ".join(f"a{j * 7 % n}" for j in range(50)), n)
    ),
    ("lark", "an open quote"): lambda n: 'start: "' + "a" * 240 * n,
    ("lark", "slashes"): lambda n: "start: " + "/" * 240 * n,
    ("lark", "inline JSON"): lambda n: "start: " + '%json {"type": "null"} ' * 10 * n,
    ("lark", "open inline JSON"): lambda n: "start: " + '%json {"' * 30 * n,
    ("lark", "complements"): lambda n: "start: A0\n" + rows(lambda i: f'A{i}: ~"{i}"', 10 * n),
    ("lark", "imported terminals"): lambda n: (
        rows(lambda i: f"%import .json.STRING -> A{i}", 7 * n, "start: A0")
    ),
    ("lark", "inner grammars"): lambda n: "start: " + '%lark { start: "a" } ' * 11 * n,
    ("gbnf", "empty texts"): lambda n: (
        "root ::= " + " | ".join(["r0+"] * 40 * n) + "\n"
        + rows(lambda i: f"r{i} ::= r{i + 1} r{i + 1} r{i + 1}", 18, 'r18 ::= ""')
    ),
    ("gbnf", "literals that may meet"): lambda n: (
        "root ::= " + " | ".join(f'"a{i}"+' for i in range(24 * n))
    ),
    ("gbnf", "a chain"): lambda n: (
        "root ::= r0\n" + rows(lambda i: f"r{i} ::= r{i + 1}", 15 * n, f"r{15 * n} ::= [a]")
    ),
    ("gbnf", "nested parentheses"): lambda n: "root ::= " + tower("(", '"ab"', ")*", n),
    ("gbnf", "a class of many"): lambda n: "root ::= [" + "abcdefgh-km-z" * 18 * n + "]+",
    ("gbnf", "counts of one rule"): lambda n: (
        "root ::= " + " ".join(f"r{{1,{i + 1}}}" for i in range(20 * n))
        + "\nr ::= " + "c " * 60 + "\nc ::= [" + "acegikm" * 5 * n + "]"
    ),
    ("gbnf", "small repetitions"): lambda n: "root ::= " + "[a]+ [b]* " * 24 * n,
    ("json_schema", "a ladder of references"): lambda n: defined(
        3 * n, lambda i: {"allOf": [ref(i + 1), ref(i + 1)]}, {"type": "null"}
    ),
    ("json_schema", "a ring of references"): lambda n: defined(
        6 * n, lambda i: ref((i + 1) % (6 * n)), {"type": "null"}
    ),
    ("json_schema", "a tower of anyOf"): lambda n: tower('{"anyOf":[', '{"type":"null"}', "]}", n),
    ("json_schema", "all required"): lambda n: json.dumps(
        {"type": "object", "required": [f"{i}" for i in range(25 * n)], "minProperties": 30 * n}
    ),
    ("regex", "backslashes"): lambda n: "\\\\" * 120 * n,
}  # fmt: skip


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
        if kind == "gbnf":
            with counted() as steps:
                gbnf_to_lark(text)
            found["gbnf"] = steps[0]
        if kind == "json_schema":
            with counted() as steps:
                endless(json.loads(text))
            found["endless"] = steps[0]
        with counted() as steps:
            parse.cache_clear()
            parts = parts_of.__wrapped__(source)
        if kind != "gbnf":
            found["link"] = steps[0]
        with counted() as steps, suppress(DerbyError):
            parse.cache_clear()
            require_productive(parts)
        found["productive"] = steps[0]
    return found


def bound(steps: int, size: int, larger: int, few: int) -> float:
    """What n log n from `size` on allows at a `larger` one."""
    return few + TOLERANCE * steps * larger * log2(larger) / (size * log2(size))


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "name"), SHAPES)
def test_reading_takes_n_log_n_steps(kind: Kind, name: str) -> None:
    """Of GBNF's empty texts, 18 rows took 3^18 steps."""
    texts = {size: SHAPES[kind, name](size) for size in SIZES}
    assert len(texts[LARGE].encode()) <= MAX_BYTES
    found = {size: steps_of(kind, text) for size, text in texts.items()}
    for reading in found[LARGE]:
        few = FEW["gbnf" if reading == "gbnf" else "other"]
        for size, larger in [(SMALL, LARGE), *pairwise(SIZES)]:
            taken = found[larger].get(reading, 0)
            assert taken <= bound(found[size][reading], size, larger, few), (reading, larger, found)
