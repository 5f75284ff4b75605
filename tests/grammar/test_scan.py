"""The first look refuses what no parser should see, and lets pass what people write."""

import contextlib

import pytest

from backend.errors import DerbyError
from backend.grammar.checks.scan import MAX_COUNT, MAX_NESTING, MAX_SCHEMA_COUNT, scan
from backend.grammar.sources import MAX_BYTES, Kind, shipped


def refused(text: str, kind: Kind) -> str:
    with pytest.raises(DerbyError) as caught:
        scan(text, kind)
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert len(sentence) < 300
    return sentence


def test_what_ships_passes() -> None:
    for source in shipped().values():
        scan(source.text, source.kind)


NESTED: list[tuple[Kind, str, str, str]] = [
    ("lark", "start: {}", "(", ")"),
    ("lark", "start: {}", "[", "]"),
    ("lark", "start: /{}/", "(", ")"),
    ("lark", "start: %json {}", '{"items":', "}"),
    ("regex", "{}", "(", ")"),
    ("regex", "{}", "[a", "]"),
    ("gbnf", "root ::= {}", "(", ")"),
    ("json_schema", "{}", "[", "]"),
    ("json_schema", "{}", '{"not":', "}"),
]


@pytest.mark.parametrize(("kind", "frame", "opening", "closing"), NESTED)
def test_brackets_nest_to_a_limit(kind: Kind, frame: str, opening: str, closing: str) -> None:
    def nested(depth: int) -> str:
        return frame.format(opening * depth + "1" + closing * depth)

    allowed = MAX_NESTING - (frame.count("/") > 0)  # a regular expression is itself one deep
    scan(nested(allowed), kind)
    found = refused(nested(allowed + 1), kind)
    assert f"nested {MAX_NESTING + 1} deep" in found
    assert str(MAX_NESTING) in found
    column = frame.index("{") + (len(opening) * allowed) + 1
    assert f"line 1, column {column}:" in found
    assert str(MAX_NESTING) in refused(frame.format(opening * 60_000), kind)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("lark", 'start: "((((" // [[[[\n# {{{{\n'),
        ("lark", r'start: "\"((((" /\/\(\[/ /[(\[{\]]/'),
        ("regex", r"[(({{]\(\[\{[^](]{2}"),
        ("gbnf", 'root ::= [(({{\\]] "((((" # ((((\n'),
        ("json_schema", r'{"const": "\"[[[[{{{{"}'),
    ],
)
def test_brackets_that_are_text_do_not_nest(kind: Kind, text: str) -> None:
    """Forty times over, brackets that counted would pass the limit."""
    scan("\n".join([text] * 40), kind)


@pytest.mark.parametrize(
    ("kind", "frame"),
    [
        ("lark", 'start: "a"{}'),
        ("lark", "start: /a{}/"),
        ("regex", "a{}"),
        ("gbnf", 'root ::= "a"{}'),
        ("json_schema", '{{"pattern": "a{}"}}'),
    ],
)
def test_repetitions_are_counted_and_in_order(kind: Kind, frame: str) -> None:
    for fine in (f"{{{MAX_COUNT}}}", f"{{0,{MAX_COUNT}}}", "{2,2}", "{3,}", "{0}"):
        scan(frame.format(fine), kind)
    for large in (f"{{{MAX_COUNT + 1}}}", "{1,99999}", "{5000,}", "{" + "9" * 5000 + "}"):
        assert f"limit of {MAX_COUNT}" in refused(frame.format(large), kind)
    assert "{5,2} begins at 5 and ends at 2" in refused(frame.format("{5,2}"), kind)


def test_lark_counts_with_tildes_too() -> None:
    scan('start: "a"~3 "b"~2..4\nID: /[a-z]+/ & ~/if/', "lark")
    assert "~1001" in refused('start: "a" ~1001', "lark")
    assert "~5..2 begins" in refused('start: "a" ~ 5 .. 2', "lark")


@pytest.mark.parametrize(
    ("kind", "fine", "large"),
    [
        ("regex", "((a{10}){10}){900}", "((a{1000}){1000}){1000}"),
        ("regex", "(ab){1000}(cd){1000}", "([ab]c{200}){1000}"),
        ("regex", "(a{0,1000})*", "(a{0,1000}b?){0,101}"),
        ("lark", 'start: (("a"~10)~10)~900', 'start: (("a"~100)~100)~100'),
        ("lark", "A: (/a{100}/){900}", "A: (/a{1000}/){1000}"),
        ("gbnf", 'root ::= ("a"{10}){1000}', 'root ::= (("a"{100}){100} "b"){100}'),
        ("json_schema", '{"pattern": "(a{10}){1000}"}', '{"pattern": "(a{1000}){1000}"}'),
    ],
)
def test_repetitions_inside_repetitions_multiply(kind: Kind, fine: str, large: str) -> None:
    scan(fine, kind)
    assert "100000 pieces" in refused(large, kind)


@pytest.mark.parametrize("key", ["maxLength", "minItems", "maxProperties", "minContains"])
def test_a_schema_counts_further(key: str) -> None:
    scan(f'{{"{key}": {MAX_SCHEMA_COUNT}, "maximum": 1e30, "x": "{key}"}}', "json_schema")
    for number in (str(MAX_SCHEMA_COUNT + 1), "1e999", "9" * 5000):
        assert key in refused(f'{{"{key}" :\n {number}}}', "json_schema")
    escaped = key.replace("m", "\\u006d", 1)
    assert "line 1, column" in refused(f'{{"{escaped}": {10**9}}}', "json_schema")


@pytest.mark.parametrize("kind", ["lark", "json_schema", "regex", "gbnf"])
def test_characters_that_turn_text_around_are_refused_where_they_stand(kind: Kind) -> None:
    for character in "\0\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069":
        found = refused(f'ab\n"\u00e9\U0001f600{character}"', kind)
        assert f"U+{ord(character):04X}" in found
        assert "line 2, column 4" in found
    scan('"\u200d\u2065\u00e9"', kind)


@pytest.mark.parametrize("kind", ["lark", "json_schema", "regex", "gbnf"])
def test_broken_texts_end_like_others(kind: Kind) -> None:
    """A careless pattern took over ten minutes for a brace and 16,000 spaces."""
    for start in ("{", "{1", "{1,", "~", "~1", '"a"', '"pattern":'):
        scan(start + " " * (MAX_BYTES - len(start)), kind)
    for piece in ('"', '"\\', "/", "/\\", "\\p{", '"a":', '"a":"', "~ ", "\u00e9", "'"):
        with contextlib.suppress(DerbyError):
            scan(piece * (MAX_BYTES // len(piece.encode())), kind)


@pytest.mark.parametrize("kind", ["lark", "json_schema", "regex", "gbnf"])
def test_closing_brackets_do_not_make_up_for_later_ones(kind: Kind) -> None:
    assert "nested" in refused(")]}" * 1000 + " {" * (MAX_NESTING + 1), kind)
