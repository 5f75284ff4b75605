"""Grammars made to break what reads them: each is refused in a sentence or compiles in bounds.

The deadline is the sandbox's own, and that the tests end at all shows that this process lives.
"""

import json
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from backend.errors import DerbyError
from backend.grammar.gbnf.convert import gbnf_to_lark
from backend.grammar.sandbox.parent import Sandbox
from backend.grammar.sources import GrammarSource, Kind, grammar_from_file, shipped
from backend.text import ByteTokenizer

BYTES = ByteTokenizer()
GOOD = GrammarSource("lark", 'start: "a" /[0-9]+/', "good")

#: A text, and a word of the sentence that refuses it; None where it compiles, or may.
Case = tuple[Kind, str, str | None]


@pytest.fixture(scope="module")
def hasty() -> Iterator[Sandbox]:
    """For grammars that would only use up the whole deadline."""
    made = Sandbox(deadline=0.5)
    yield made
    made.close()


def fate(sandbox: Sandbox, kind: Kind, text: str) -> str:
    """What refuses a grammar, as the app would come to it; "" if it compiles."""
    try:
        sandbox.examine(GrammarSource(kind, text, "hostile"), BYTES)
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
WEB = {
    f"a{i}": {
        "properties": {c: {"$ref": f"#/$defs/a{i * k % 90}"} for c, k in (("x", 7), ("y", 3))}
    }
    for i in range(90)
}
MANY = {str(i): {} for i in range(1200)}
NAMES = [f"A{i}" for i in range(900)]

LARGE: dict[str, Case] = {
    "60,000 parentheses": ("lark", "start: " + "(" * 60_000 + '"a"' + ")" * 60_000, "bytes"),
    "16,000 parentheses": ("lark", "start: " + "(" * 16_000, "nested"),
    "8,000 groups": ("regex", "(" * 8_000 + "a" + ")" * 8_000, "nested"),
    "8,000 classes": ("regex", "[" * 8_000 + "a" + "]" * 8_000, "nested"),
    "16,000 brackets of JSON": ("json_schema", "[" * 16_000, "nested"),
    "16,000 brackets of GBNF": ("gbnf", "root ::= " + "(" * 16_000, "deep"),
    "7,000 groups in Lark": ("lark", "start: /" + "(" * 7000 + "a" + ")" * 7000 + "/", "nested"),
    "1,500 schemas in Lark": ("lark", "start: %json " + '{"items":' * 1500 + "}" * 1500, "recurs"),
    "2,000 schemas": ("json_schema", '{"not":' * 2000 + "{}" + "}" * 2000, "nested"),
    "a tower of stars": ("lark", "start: " + "(" * 90 + '"a"' + ")*" * 90, "nested"),
    "a small tower of stars": ("lark", "start: " + "(" * 25 + '"a"' + ")*" * 25, None),
    "a tower of stars in a regex": ("regex", "(" * 90 + "a" + ")*" * 90, None),
    "2,200 literals": ("lark", "start: " + "|".join(f'"{i}"' for i in range(2200)), "items"),
    "2,200 literals in a terminal": (
        "lark",
        "start: A\nA: " + "|".join(f'"{i}"' for i in range(2200)),
        None,
    ),
    "an enum of 2,700": ("json_schema", schema({"enum": list(range(2700))}), None),
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
    "a web of references": ("json_schema", schema({"$defs": WEB, "$ref": "#/$defs/a1"}), None),
    "2^60 by allOf": ("json_schema", chain(60, "allOf", {"type": "null"}), None),
    "2^60 by anyOf": ("json_schema", chain(60, "anyOf", {"type": "null"}), None),
    "Fibonacci by allOf": ("json_schema", chain(60, "allOf", {"type": "null"}, step=2), None),
    "a circle of allOf": (
        "json_schema",
        '{"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}',
        "",
    ),
    "a tower of allOf": ("json_schema", tower(45, "allOf"), None),
    "a tower of anyOf": ("json_schema", tower(45, "anyOf"), None),
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
    "counts without limit": ("json_schema", '{"minItems": 100000000}', None),
    "counts in the wrong order": (
        "json_schema", '{"type": "array", "minItems": 5, "maxItems": 2}', "",
    ),
    "a number of 5,000 digits": ("json_schema", '{"maximum": ' + "9" * 5000 + "}", "number"),
    "a range of all floats": (
        "json_schema", '{"type": "number", "minimum": -1e308, "maximum": 1.7e308}', "range",
    ),
    "many properties required": (
        "json_schema", schema({"type": "object", "required": [str(i) for i in range(1500)]}), None,
    ),
}  # fmt: skip

REGEXES: dict[str, Case] = {
    "an inverted range": ("regex", "a{5,2}", "must be <="),
    "an inverted range of rules": ("lark", 'start: "a"~5..2', "must be >="),
    "an inverted class": ("regex", "[z-a]", "range"),
    "500 ambiguous choices": ("regex", "(a|aa|aaa){500}", "too many expressions"),
    "500 optional letters": ("regex", "(?:a?){500}a{500}", "too many expressions"),
    "30 searches": ("regex", "(.*a){30}", None),
    "1,000 searches": ("regex", "(.*a){1000}", None),
    "nested plus": ("regex", "(x+x+)+y", None),
    "nested plus in Lark": ("lark", "start: /(x+x+)+y/", None),
    "a billion letters": ("regex", "((a{1000}){1000}){1000}", "smaller repetitions"),
    "a billion literals": ("lark", 'start: (("a"{1000}){1000}){1000}', "smaller repetitions"),
    "a large number": ("regex", "a{1000000000}", "smaller repetitions"),
    "a terminal of a million": ("lark", "start: A\nA: (/a{1000}/){1000}", "smaller repetitions"),
    "a million by tildes": ("lark", 'start: (("a"~100)~100)~100', "smaller repetitions"),
    "a million of GBNF": ("gbnf", 'root ::= (("a"{100}){100} "b"){100}', "smaller repetitions"),
    "5,000 digits in Lark": ("lark", 'start: "a"{' + "9" * 5000 + "}", "too large"),
    "5,000 digits in a regex": ("regex", "a{" + "9" * 5000 + "}", "invalid"),
    "a billion in a pattern": (
        "json_schema", schema({"type": "string", "pattern": "((a{1000}){1000}){1000}"}), None,
    ),
    "an automaton of 2^200": ("regex", ".*a.{200}", None),
    "letters of all scripts": ("regex", r"(\p{L}|\p{N}|\p{S}){1,500}", None),
    "scripts repeated": ("regex", r"(\w{1,99}\p{Greek}{1,99}\S{1,99}){99}", None),
    "all cases of all letters": ("regex", "(?i)" + r"[\w--[a-z]]{1,50}" * 40, None),
    "26 searches at once": (
        "lark",
        "start: A\nA: " + " & ".join(f"/(.*{chr(97 + i)}.*){{5}}/" for i in range(26)),
        "fuel",
    ),
    "26 complements": (
        "lark",
        "start: A\nA: " + " & ".join(f"~/(.*{chr(97 + i)}.{{20}}.*)/" for i in range(26)),
        None,
    ),
}  # fmt: skip


def cascade(width: int, end: str, head: str = "root ::= r0+", between: str = " ") -> str:
    """GBNF rules that each need the next one `width` times, and an `end` without a character."""
    rules = (f"r{n} ::= " + between.join([f"r{n + 1}"] * width) for n in range(18))
    return "\n".join([head, *rules, f"r18 ::= {end}"])


#: Three to the 18th empty texts, and more.
CASCADES: dict[str, str] = {
    f"{width} {name} to the 18th": cascade(width, end)
    for width in (3, 8)
    for name, end in (("empty texts", '""'), ("zero counts", '"a"{0}'), ("options", '"a"?'))
} | {"2^18 alternatives": cascade(2, '""', between=" | ")}

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
def test_it_is_refused_or_compiles(sandbox: Sandbox, name: str) -> None:
    kind, text, word = (LARGE | SCHEMAS | REGEXES)[name]
    found = fate(sandbox, kind, text)
    if word is not None:
        assert found
        assert word in found
    assert fate(sandbox, GOOD.kind, GOOD.text) == ""


@pytest.mark.parametrize("name", CASCADES)
def test_empty_texts_are_counted_too(name: str) -> None:
    """A lexeme was bounded by its characters, so that one of none took 3^18 steps: 347 bytes of
    GBNF stopped the page's process for more than 45 s. Nothing here has a deadline.
    """
    assert len(gbnf_to_lark(CASCADES[name])) < 2 * len(CASCADES[name])


def test_the_cascades_leave_the_sandbox_alive(hasty: Sandbox) -> None:
    for text in CASCADES.values():
        fate(hasty, "gbnf", text)
    assert fate(hasty, GOOD.kind, GOOD.text) == ""


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_lark_is_refused(sandbox: Sandbox, text: str) -> None:
    assert fate(sandbox, "lark", text)
    assert fate(sandbox, GOOD.kind, GOOD.text) == ""


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("lark", "start: /a+/ /a+/"),
        ("lark", "start: A A\nA: /(ab)+/"),
        ("json_schema", '{"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]}'),
    ],
)
def test_what_would_run_for_ever_or_nearly_is_stopped(
    hasty: Sandbox, kind: Kind, text: str
) -> None:
    """The greedy `/a+/` leaves the next one nothing, so that "a" is forced without end."""
    assert "longer than 0.5 s" in fate(hasty, kind, text)
    assert fate(hasty, GOOD.kind, GOOD.text) == ""


def test_a_file_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    for number, content in enumerate([b"\xff\xfe", b'start: "\xc3"', b'start: "\xed\xa0\x80"']):
        path = tmp_path / f"{number}.lark"
        path.write_bytes(content)
        with pytest.raises(DerbyError, match="Cannot read"):
            grammar_from_file(path)


@pytest.mark.parametrize("kind", ["lark", "json_schema", "regex", "gbnf"])
def test_text_that_reads_as_what_it_is_not_is_refused(kind: Kind) -> None:
    for character in "\0\u202a\u202e\u2066\u2069":
        with pytest.raises(DerbyError, match=f"line 2, column 4: .*U.{ord(character):04X}"):
            GrammarSource(kind, f'ab\n"\u00e9\U0001f600{character}"', "hostile")
    GrammarSource(kind, r'"\u202e"' + "\u200d\u2065\u00e9", "fine")


def test_random_damage_to_what_ships_never_gets_through(sandbox: Sandbox) -> None:
    rng = random.Random(5)
    sources = list(shipped().values())
    for _ in range(60):
        source = rng.choice(sources)
        fate(sandbox, source.kind, damaged(source.text, rng))
    assert fate(sandbox, GOOD.kind, GOOD.text) == ""


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
