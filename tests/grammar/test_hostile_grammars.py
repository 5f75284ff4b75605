"""Grammars made to break what reads them: each is refused in a sentence or compiles in bounds.

That the tests end at all shows that this process lives.
"""

import json
import random
from itertools import pairwise

import pytest

from backend.errors import DerbyError
from backend.grammar.check import check
from backend.grammar.sources import GrammarSource, Kind, shipped

#: A text, and a word of the sentence that refuses it; None where it compiles, or may.
Case = tuple[Kind, str, str | None]


def fate(kind: Kind, text: str) -> str:
    """What refuses a grammar, as the app would come to it; "" if it compiles."""
    try:
        check(GrammarSource(kind, text, "hostile"))
    except DerbyError as error:
        return str(error)
    return ""


def schema(value: object) -> str:
    return json.dumps(value)


def chain(length: int, keyword: str, end: object, step: int = 1) -> str:
    """`length` definitions that each need the next one, twice."""
    links: dict[str, object] = {
        f"a{i}": {keyword: [{"$ref": f"#/$defs/a{min(i + k, length)}"} for k in (1, step)]}
        for i in range(length)
    }
    return schema({"$defs": links | {f"a{length}": end}, "$ref": "#/$defs/a0"})


def tower(depth: int, keyword: str) -> str:
    return f'{{"{keyword}":[' * depth + '{"type":"null"}' + "]}" * depth


RING = {f"a{i}": {"$ref": f"#/$defs/a{(i + 1) % 90}"} for i in range(90)}
MANY = {str(i): {} for i in range(1200)}
NAMES = [f"A{i}" for i in range(900)]

LARGE: dict[str, Case] = {
    "8,000 groups": ("regex", "(" * 8_000 + "a" + ")" * 8_000, "nested"),
    "16,000 brackets of JSON": ("json_schema", "[" * 16_000, "recursion"),
    "7,000 groups in Lark": ("lark", "start: /" + "(" * 7000 + "a" + ")" * 7000 + "/", "nested"),
    "2,000 schemas": ("json_schema", '{"not":' * 2000 + "{}" + "}" * 2000, "recursion"),
    "a tower of stars": ("lark", "start: " + "(" * 90 + '"a"' + ")*" * 90, "nested"),
    "2,200 literals": ("lark", "start: " + "|".join(f'"{i}"' for i in range(2200)), "items"),
    "1,200 properties": ("json_schema", schema({"properties": MANY}), None),
    "900 terminals in a row": (
        "lark",
        "start: A0\n" + "".join(f"{a}: {b}\n" for a, b in pairwise(NAMES))
        + f'{NAMES[-1]}: "a"',
        None,
    ),
    "terminals that double": (
        "lark",
        "start: A0\n" + "".join(f"A{i}: A{i + 1} A{i + 1}\n" for i in range(60)) + 'A60: "a"',
        "too big",
    ),
    "rules that double": (
        "lark",
        "start: a0\n" + "".join(f"a{i}: a{i + 1} a{i + 1}\n" for i in range(60)) + 'a60: "a"',
        "Too many items",
    ),
}  # fmt: skip

SCHEMAS: dict[str, Case] = {
    "a ring of references": ("json_schema", schema({"$defs": RING, "$ref": "#/$defs/a0"}), ""),
    "a reference to itself": ("json_schema", '{"$ref": "#"}', ""),
    "2^60 by allOf": ("json_schema", chain(60, "allOf", {"type": "null"}), None),
    "2^60 by anyOf": ("json_schema", chain(60, "anyOf", {"type": "null"}), None),
    "a circle of allOf": (
        "json_schema",
        '{"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}',
        "",
    ),
    "too high a tower": ("json_schema", tower(60, "allOf"), None),
    "products of anyOf": (
        "json_schema",
        schema(
            {"allOf": [
                {"anyOf": [{"properties": {f"{i}{j}": {"type": "null"}}} for j in range(8)]}
                for i in range(12)
            ]}
        ),
        "",
    ),
    "patterns that all hold": (
        "json_schema",
        schema({"type": "string", "allOf": [{"pattern": f"(.*{c}){{9}}"} for c in "abcdefghij"]}),
        None,
    ),
    "counts in the wrong order": (
        "json_schema", '{"type": "array", "minItems": 5, "maxItems": 2}', "",
    ),
    "a number of 5,000 digits": ("json_schema", '{"maximum": ' + "9" * 5000 + "}", "digits"),
    "a range of all floats": (
        "json_schema", '{"type": "number", "minimum": -1e308, "maximum": 1.7e308}', None,
    ),
}  # fmt: skip

REGEXES: dict[str, Case] = {
    "an inverted range": ("regex", "a{5,2}", "must be <="),
    "an inverted class": ("regex", "[z-a]", "range"),
    "500 ambiguous choices": ("regex", "(a|aa|aaa){500}", "too many expressions"),
    "500 optional letters": ("regex", "(?:a?){500}a{500}", None),
    "1,000 searches": ("regex", "(.*a){1000}", None),
    "a billion letters": ("regex", "((a{1000}){1000}){1000}", "too many"),
    "a terminal of a million": ("lark", "start: A\nA: (/a{1000}/){1000}", "too many"),
    "5,000 digits in Lark": ("lark", 'start: "a"{' + "9" * 5000 + "}", "too large"),
    "a billion in a pattern": (
        "json_schema", schema({"type": "string", "pattern": "((a{1000}){1000}){1000}"}), None,
    ),
    "letters of all scripts": ("regex", r"(\p{L}|\p{N}|\p{S}){1,500}", None),
    "scripts repeated": ("regex", r"(\w{1,99}\p{Greek}{1,99}\S{1,99}){99}", None),
    "26 searches at once": (
        "lark",
        "start: A\nA: " + " & ".join(f"/(.*{chr(97 + i)}.*){{5}}/" for i in range(26)),
        "simplify",
    ),
    "26 complements": (
        "lark",
        "start: A\nA: " + " & ".join(f"~/(.*{chr(97 + i)}.{{20}}.*)/" for i in range(26)),
        None,
    ),
}  # fmt: skip


MALFORMED = [
    'start: "abc', "start: /abc", "start: %json {", "start: %regex {}", "start -> a", "start: @0",
    "start: @", "start: @{", "start: <[999999999999]>", "start: <[5-2]>", "start: <[]>",
    "start: <[^*]>", "start: <nope>", 'start[max_tokens=-1]: "a"', 'start[stop=/(/]: "a"',
    'start[max_tokens=99999999999999999999]: "a"', 'start[temperature=nan]: "a"',
    "start[lazy,suffix=A]: /a*/\nA: A", "start: A\nA: B\nB: A", "start: x::0x1", "%llguidance {",
    '%llguidance []\nstart: "a"', '%ignore <[1]>\nstart: "a"', "%import common.NOPE",
    'start: "\\ud800"', "start: /\\p{Nope}/", "start: /(?=a)/", "\u00e9", "::", "%",
]  # fmt: skip


@pytest.mark.parametrize("name", [*LARGE, *SCHEMAS, *REGEXES])
def test_it_is_refused_or_compiles(name: str) -> None:
    kind, text, word = (LARGE | SCHEMAS | REGEXES)[name]
    refused = fate(kind, text)
    assert word is None or word in refused


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_lark_is_refused(text: str) -> None:
    assert fate("lark", text)


@pytest.mark.thorough
def test_random_damage_to_what_ships_never_gets_through() -> None:
    rng = random.Random(5)
    sources = list(shipped().values())
    for _ in range(60):
        source = rng.choice(sources)
        fate(source.kind, damaged(source.text, rng))


def damaged(text: str, rng: random.Random) -> str:
    """Some pieces removed, repeated, or replaced by what means something somewhere."""
    for _ in range(rng.randrange(1, 6)):
        start, length = rng.randrange(len(text) + 1), rng.choice((0, 1, 5, 40))
        other = rng.randrange(len(text) + 1)
        new = rng.choice((*PIECES, text[other : other + length]))
        text = text[:start] + new + text[start + length :] or " "
    return text


PIECES = [
    "(", ")", "[", "]", "{", "}", '"', "/", "\\", "%json {", "%regex {", "->", "@{", "<[1]>", "::",
    "~2..1", "{0}", "*", "+", "?", "|", "&", ":", ",", ".", "[lazy]", '[stop=""]', "%ignore /a*/",
    "\n", "\u00e9", "\U0001f600", "\\p{", "(?i)", "^", "1e999", "null", '"$ref": "#",',
    '"not": {},', '"multipleOf": 0,', '"pattern": "(",', '"enum": [],', '"minItems": 99,',
]  # fmt: skip
