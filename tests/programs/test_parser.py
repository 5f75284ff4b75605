"""Prompt programs: what the tags mean, where each error is, and that no text is too hostile."""

import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backend.errors import DerbyError
from backend.programs.parser import (
    MAX_NODES,
    MAX_TEXT,
    Gen,
    Program,
    Select,
    Text,
    Value,
    is_program,
    parse_program,
)

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


def test_repeat_is_expanded_and_takes_its_newlines_along() -> None:
    source = 'a\n{{repeat 2}}\n- {{gen "x"}}\n{{repeat 2}}\r\n!{{end}}\n\n{{end}}\nb'
    once = (Gen("x"), Text("\n!!\n- "), Gen("x"), Text("\n!!\nb"))
    assert parse_program(source).nodes == (Text("a\n- "), *once)


def test_the_assistants_turn_begins_at_its_tag() -> None:
    source = '{{repeat 2}}Hi. {{end}}Why?\n{{assistant}}Because {{gen "x"}}'
    assert parse_program(source) == Program((Text("Because "), Gen("x")), "Hi. Hi. Why?\n")


def test_a_tag_may_stand_in_json_braces() -> None:
    source = '{"a": {{{gen "x"}}}}'
    assert parse_program(source).nodes == (Text('{"a": {'), Gen("x"), Text("}}"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{{gen "x"}}', True),
        ("{{ select", True),
        ("{{{repeat", True),
        ("{{assistant}}", True),
        ("", False),
        ("{{generate}}", False),
        ("{{gen_x}}", False),
        ("{{name}} {{end}} {% gen %} { {gen}", False),
    ],
)
def test_plain_prompts_with_braces_are_left_alone(text: str, *, expected: bool) -> None:
    assert is_program(text) is expected


@pytest.mark.parametrize(
    ("source", "line", "column", "words"),
    [
        ("plain", 1, 1, "no slot"),
        ('é\n  {{gen "x"', 2, 3, "this {{ has no }}"),
        ("{{", 1, 1, "this {{ has no }}"),
        ('{{gen "x" max_tokens', 1, 1, "this {{ has no }}"),
        ('{{gen "x"} }', 1, 10, "expected }} but found '}'"),
        ("{{}}", 1, 3, "one of gen, select"),
        ('{{gen "x"}}\n{{y}}', 2, 1, "no earlier slot is named 'y'"),
        ('{{x}}{{gen "x"}}', 1, 1, "no earlier slot is named 'x'"),
        ("{{gen x}}", 1, 7, "the slot's name in double quotes"),
        ('{{gen "1x"}}', 1, 7, "'1x' is not a name"),
        ('{{gen "x\\n"}}', 1, 7, "is not a name"),
        ('{{gen "end"}}', 1, 7, "a tag's name"),
        ('{{gen "x}}\n"', 1, 7, "this string has no end"),
        ('{{gen "x\\"', 1, 7, "this string has no end"),
        ('{{gen "x" top=1}}', 1, 11, "no option is named 'top'"),
        ('{{gen "x" max_tokens=1 max_tokens=1}}', 1, 24, "given twice"),
        ('{{gen "x" max_tokens 4}}', 1, 22, "the = of max_tokens"),
        ('{{gen "x" max_tokens=}}', 1, 22, "the number of max_tokens"),
        ('{{gen "x" max_tokens=0}}', 1, 22, "is '0'; it must be a whole number from 1 to 4,096"),
        ('{{gen "x" max_tokens=4097}}', 1, 22, "from 1 to 4,096"),
        ('{{gen "x" max_tokens=1.5}}', 1, 22, "whole number"),
        ('{{gen "x" max_tokens=²}}', 1, 22, "whole number"),
        (f'{{{{gen "x" max_tokens={"9" * 9000}}}}}', 1, 22, "whole number"),
        ('{{gen "x" temperature=5.1}}', 1, 23, "it must be a plain number from 0 to 5"),
        ('{{gen "x" temperature=nan}}', 1, 23, "it must be a plain number"),
        ('{{gen "x" stop=""}}', 1, 16, "stop is empty"),
        ('{{gen "x" regex=""}}', 1, 17, "regex is empty"),
        (f'{{{{gen "x" regex="{"a" * 1001}"}}}}', 1, 17, "1,001 characters; 1,000 are allowed"),
        ('{{select "x"}}', 1, 13, "the options in double quotes"),
        ('{{select "x" "a"}}', 1, 14, "1 options are given; it must be 2 to 64"),
        (f'{{{{select "x" "{"|".join(map(str, range(65)))}"}}}}', 1, 14, "65 options"),
        ('{{select "x" "a||b"}}', 1, 14, "an option is empty"),
        ('{{select "x" "a|b|a"}}', 1, 14, "the option 'a' is given twice"),
        ('a\n{{gen "x"}}{{end}}', 2, 12, "has no {{repeat}}"),
        ('{{repeat 2}}\n {{repeat 3}}{{gen "x"}}{{end}}', 1, 1, "{{repeat}} has no {{end}}"),
        ("{{repeat 0}}{{end}}", 1, 10, "from 1 to 1,000"),
        ("{{repeat}}{{end}}", 1, 9, "the number of repeat"),
        ("{{repeat 2}}" * 11, 1, 121, "nested deeper than 10"),
        ("u{{assistant}}{{assistant}}", 1, 15, "given twice"),
        ("u{{repeat 1}}{{assistant}}{{end}}", 1, 14, "inside a {{repeat}}"),
        ('u{{gen "x"}}{{assistant}}', 1, 2, "a slot is in the user's turn"),
        (' {{assistant}}{{gen "x"}}', 1, 2, "the user's turn is empty"),
        ('{{repeat 501}}{{gen "x"}}.{{end}}', 1, 1, "past 1,000 pieces"),
        (f"a\n{{{{repeat 2}}}}{'a' * MAX_TEXT}{{{{end}}}}", 2, 1, "past 65,536 characters"),
        (
            f'{"a" * MAX_TEXT}{{{{assistant}}}}\n{{{{gen "x"}}}}',
            1,
            65_550,
            "past 65,536 characters",
        ),
        (f'{{{{gen "x"}}}}{"a" * (MAX_TEXT + 1)}', 1, 12, "past 65,536 characters"),
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


def test_the_limits_themselves_are_allowed() -> None:
    source = '{{repeat 10}}{{repeat 50}}{{gen "x"}}.{{end}}{{end}}'
    assert len(parse_program(source).nodes) == MAX_NODES
    source = "".join(["{{repeat 2}}"] * 10 + ["a" * 64] + ["{{end}}"] * 10 + ['{{gen "x"}}'])
    assert parse_program(source).nodes == (Text("a" * MAX_TEXT), Gen("x"))


@pytest.mark.parametrize("body", ["", "a", "a" * 60_000, '{{gen "x"}}', '{{gen "x"}}a'])
def test_nested_repeats_cannot_blow_up(body: str) -> None:
    source = '{{gen "x"}}' + "{{repeat 1000}}" * 10 + body + "{{end}}" * 10
    tracemalloc.start()
    try:
        if body:
            with pytest.raises(DerbyError, match=r"past 1,000 pieces|past 65,536"):
                parse_program(source)
        else:
            assert parse_program(source).nodes == (Gen("x"),)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


PIECES = st.sampled_from(
    [
        *["{{", "}}", "{", '"', "\\", "|", "=", " ", "\n", "\r", "\0", "é", "²", "7", "\ud800"],
        *["{{gen ", "{{select ", "{{repeat 3}}", "{{repeat 999}}", "{{end}}", "{{assistant}}"],
        *['"x"', '"a|b"', " stop=", " max_tokens=", " temperature=", " regex=", "{{x}}"],
        *['{{gen "x"}}', '{{select "x" "a|b"}}', "word"],
    ]
)


@given(st.lists(PIECES, max_size=40).map("".join) | st.text())
@example("{{repeat 999}}{{repeat 999}}{{repeat 999}}{{end}}{{end}}{{end}}")
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
