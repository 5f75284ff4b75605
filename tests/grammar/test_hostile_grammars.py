"""Grammars made to break what reads them: each is refused in a sentence or compiles in bounds.

That the tests end at all shows that this process lives.
"""

import json
import random

import pytest

from backend.errors import DerbyError
from backend.grammar.check import check
from backend.grammar.sources import GrammarSource, Kind, shipped


def fate(kind: Kind, text: str) -> str:
    """What refuses a grammar, as the app would come to it; "" if it compiles."""
    try:
        check(GrammarSource(kind, text, "hostile"))
    except DerbyError as error:
        return str(error)
    return ""


def chain(length: int, keyword: str) -> str:
    """`length` definitions that each need the next one, twice."""
    links: dict[str, object] = {
        f"a{i}": {keyword: [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(length)
    }
    return json.dumps({"$defs": links | {f"a{length}": {"type": "null"}}, "$ref": "#/$defs/a0"})


def doubled(name: str) -> str:
    """Sixty rules or terminals, each the next one twice."""
    links = "".join(f"{name}{i}: {name}{i + 1} {name}{i + 1}\n" for i in range(60))
    return f'start: {name}0\n{links}{name}60: "a"'


PRODUCTS = {
    "allOf": [
        {"anyOf": [{"properties": {f"{i}{j}": {"type": "null"}}} for j in range(8)]}
        for i in range(12)
    ]
}

#: A grammar, and a word of the sentence that refuses it; None where it compiles, or may.
CASES: dict[str, tuple[Kind, str, str | None]] = {
    "8,000 groups": ("regex", "(" * 8_000 + "a" + ")" * 8_000, "nested"),
    "16,000 brackets of JSON": ("json_schema", "[" * 16_000, "recursion"),
    "2,000 schemas": ("json_schema", '{"not":' * 2000 + "{}" + "}" * 2000, "recursion"),
    "a tower of stars": ("lark", "start: " + "(" * 90 + '"a"' + ")*" * 90, "nested"),
    "terminals that double": ("lark", doubled("A"), "too big"),
    "rules that double": ("lark", doubled("a"), "Too many items"),
    "8,000 groups of GBNF": ("gbnf", "root ::= " + "(" * 8_000 + '"a"' + ")" * 8_000, "recursion"),
    "2^60 by allOf": ("json_schema", chain(60, "allOf"), None),
    "2^60 by anyOf": ("json_schema", chain(60, "anyOf"), None),
    "products of anyOf": ("json_schema", json.dumps(PRODUCTS), ""),
    "a circle": (
        "json_schema",
        '{"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}',
        "no text",
    ),
    "a number of 5,000 digits": ("json_schema", '{"maximum": ' + "9" * 5000 + "}", "digits"),
    "an inverted range": ("regex", "a{5,2}", "must be <="),
    "500 ambiguous choices": ("regex", "(a|aa|aaa){500}", "too many expressions"),
    "1,000 searches": ("regex", "(.*a){1000}", None),
    "a billion letters": ("regex", "((a{1000}){1000}){1000}", "too many"),
    "a terminal of a million": ("lark", "start: A\nA: (/a{1000}/){1000}", "too many"),
    "scripts repeated": ("regex", r"(\w{1,99}\p{Greek}{1,99}\S{1,99}){99}", None),
    "26 searches at once": (
        "lark",
        "start: A\nA: " + " & ".join(f"/(.*{chr(97 + i)}.*){{5}}/" for i in range(26)),
        "simplify",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_or_compiles(name: str) -> None:
    kind, text, word = CASES[name]
    refused = fate(kind, text)
    assert word is None or word in refused


@pytest.mark.parametrize(
    "text",
    [
        'start: "abc', "start: %json {", "start: @0", "start: <[999999999999]>", "start: <nope>",
        'start[max_tokens=-1]: "a"', 'start[stop=/(/]: "a"', "start: A\nA: B\nB: A",
        "%llguidance {", 'start: "\\ud800"', "start: /(?=a)/", "\u00e9",
    ],
)  # fmt: skip
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
