"""Prompt programs: what is written out parses back, every error names its place, and no text is too
hostile.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.errors import DerbyError
from backend.programs.parser import (
    Gen,
    Program,
    Select,
    Text,
    Value,
    is_program,
    parse_program,
)
from backend.types import Request

WORDS = st.text("ab {}|\n\t\\\"'é", max_size=6)
NAMES = st.from_regex(r"\A[A-Z_][A-Za-z0-9_]{0,5}\Z")


def quoted(text: str) -> str:
    for raw, escape in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\t", "\\t")):
        text = text.replace(raw, escape)
    return f'"{text}"'


GENS = st.builds(
    Gen,
    name=NAMES,
    max_tokens=st.integers(1, 4096),
    stop=st.lists(WORDS.filter(bool), max_size=3).map(tuple),
    temperature=st.none() | st.integers(0, 50).map(lambda tenths: tenths / 10),
    regex=WORDS,
)
SELECTS = st.builds(
    Select,
    name=NAMES,
    options=st.lists(
        WORDS.map(lambda word: word.replace("|", "")).filter(bool),
        min_size=2,
        max_size=5,
        unique=True,
    ).map(tuple),
)


@st.composite
def tags(draw: st.DrawFn, slot: Gen | Select) -> str:
    """The slot as someone may have written it: its options in any order."""
    if isinstance(slot, Select):
        return f"{{{{select {quoted(slot.name)} {quoted('|'.join(slot.options))}}}}}"
    options = [f"max_tokens={slot.max_tokens}"]
    if slot.temperature is not None:
        options.append(f"temperature={slot.temperature}")
    if slot.regex:
        options.append(f"regex={quoted(slot.regex)}")
    shuffled = draw(st.permutations(options))
    stops = [f"stop={quoted(stop)}" for stop in slot.stop]
    return f"{{{{ gen {' '.join([quoted(slot.name), *stops, *shuffled])} }}}}"


@given(st.data())
def test_every_program_written_out_parses_back(data: st.DataObject) -> None:
    texts = st.text("ab\n}", min_size=1, max_size=5)
    source, nodes = "", []
    for slot in data.draw(st.lists(GENS | SELECTS, min_size=1, max_size=4)):
        text = data.draw(texts)
        source += f"{text}{data.draw(tags(slot))}{{{{{slot.name}}}}}"
        nodes += [Text(text), slot, Value(slot.name)]
    assert is_program(source)
    assert parse_program(source) == Program(tuple(nodes))


@pytest.mark.parametrize(
    ("written", "meant"),
    [(r"\n\t\"\\", '\n\t"\\'), (r"\d+\.\w", r"\d+\.\w"), (r"\\n", r"\n"), ("}} {{x", "}} {{x")],
)
def test_escapes_are_four_and_any_other_backslash_stays(written: str, meant: str) -> None:
    assert parse_program(f'{{{{gen "x" regex="{written}"}}}}').nodes == (Gen("x", regex=meant),)


@pytest.mark.parametrize(
    ("source", "program"),
    [
        ('Why?\n{{assistant}}So {{gen "x"}}', Program((Text("So "), Gen("x")), "Why?\n")),
        ('{"a": {{{gen "x"}}}}', Program((Text('{"a": {'), Gen("x"), Text("}}")))),
        (
            r'What is \{{gen "a"}}?{{assistant}}\{{x}} is {{gen "x"}} \{',
            Program((Text("{{x}} is "), Gen("x"), Text(r" \{")), 'What is {{gen "a"}}?'),
        ),
        (r'\{{{gen "x"}}', Program((Text(r"\{"), Gen("x")))),
    ],
)
def test_a_tag_begins_the_assistants_turn_or_stands_in_braces_or_is_text_behind_a_backslash(
    source: str, program: Program
) -> None:
    assert parse_program(source) == program


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{{gen", True),
        ("{{name}} {{generate}} {% gen %} { {gen}", False),
        (r"$\{{1, 2}\}$ \{{name}} \\n", False),
        (r"\{{gen 'x'}} {{select 'y'}}", True),
    ],
)
def test_plain_prompts_with_braces_are_left_alone(text: str, *, expected: bool) -> None:
    assert is_program(text) is expected
    assert expected or Request(text).text == text


def test_a_question_about_a_tag_is_no_program_with_a_backslash_before_it() -> None:
    asked = "What do {{gen 'name'}}, {{ select}} and {{assistant}} mean?"
    with pytest.raises(DerbyError, match=r"for plain text write \\\{\{\."):
        parse_program(asked)
    escaped = asked.replace("{{", r"\{{")
    assert not is_program(escaped)
    assert Request(escaped).text == Request(escaped).messages[0]["content"] == asked


@pytest.mark.parametrize(
    ("source", "line", "column", "words"),
    [
        ("plain", 1, 1, "no slot"),
        ('é\n  {{gen "x"', 2, 3, "without }}"),
        ("{{", 1, 1, "without }}"),
        ('{{gen "x"} }', 1, 10, "}} must stand where '} }'"),
        ("{{}}", 1, 3, "gen, select"),
        ('{{gen "x"}}\n{{y}}', 2, 1, "'y'"),
        ("{{gen x}}", 1, 7, "double quotes"),
        ('{{gen "1x"}}', 1, 7, "'1x'"),
        ('{{gen "gen"}}', 1, 7, "'gen'"),
        ('{{gen "x}}\n"', 1, 7, "double quotes"),
        ('{{gen "x" top=1}}', 1, 11, "'top'"),
        ('{{gen "x" max_tokens=1 max_tokens=1}}', 1, 24, "given twice"),
        ('{{gen "x" max_tokens 4}}', 1, 22, "'=' must"),
        ('{{gen "x" max_tokens=}}', 1, 22, "a number"),
        ('{{gen "x" max_tokens=0}}', 1, 22, "is 0; it must lie between 1 and 4096"),
        ('{{gen "x" max_tokens=1.5}}', 1, 22, "whole number"),
        (f'{{{{gen "x" max_tokens={"9" * 9000}}}}}', 1, 22, "whole number"),
        ('{{gen "x" temperature=5.1}}', 1, 23, "is 5.1; it must lie between 0 and 5"),
        ('{{gen "x" stop=""}}', 1, 16, "stop is empty"),
        ('{{select "x" "a"}}', 1, 14, "two options"),
        ('{{select "x" "a||b"}}', 1, 14, "is empty"),
        ('{{select "x" "a|b|a"}}', 1, 14, "'a' is given twice"),
        ("u{{assistant}}{{assistant}}", 1, 15, "once"),
        ('u{{gen "x"}}{{assistant}}', 1, 13, "without slots"),
        (' {{assistant}}{{gen "x"}}', 1, 2, "behind a text"),
    ],
)
def test_an_error_is_one_sentence_that_names_its_place(
    source: str, line: int, column: int, words: str
) -> None:
    with pytest.raises(DerbyError) as caught:
        parse_program(source)
    sentence = str(caught.value)
    assert sentence.startswith(f"Line {line}, column {column}: ")
    assert words in sentence
    assert sentence.endswith(".")
    assert len(sentence) < 250


PIECES = st.sampled_from(
    [
        *["{{", "}}", "{", '"', "\\", "|", "=", " ", "\n", "\r", "\0", "é", "²", "7", "\ud800"],
        *["{{gen ", "{{select ", "{{assistant}}"],
        *['"x"', '"a|b"', " stop=", " max_tokens=", " temperature=", " regex=", "{{x}}"],
        *['{{gen "x"}}', '{{select "x" "a|b"}}', "word"],
    ]
)


@given(st.lists(PIECES, max_size=40).map("".join) | st.text())
def test_any_text_parses_or_raises_a_derby_error(source: str) -> None:
    try:
        program = parse_program(source)
    except DerbyError:
        return
    assert is_program(source)
    assert any(isinstance(node, Gen | Select) for node in program.nodes)
    assert all(node.text for node in program.nodes if isinstance(node, Text))
    pairs = zip(program.nodes, program.nodes[1:], strict=False)
    assert not any(isinstance(a, Text) and isinstance(b, Text) for a, b in pairs)
