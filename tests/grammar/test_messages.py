"""Grammars that are wrong, hostile or lead nowhere end in one sentence for the user."""

import pytest
from lib import compile_grammar

from backend.errors import DerbyError
from backend.grammar.sources import MAX_BYTES, GrammarSource, Kind
from backend.text import ByteTokenizer
from backend.types import Proposal

BYTES = ByteTokenizer()


def lark(text: str) -> GrammarSource:
    return GrammarSource("lark", text, "test")


@pytest.mark.parametrize(
    ("kind", "text", "place", "word"),
    [
        ("lark", 'start: "a" x\n', (1, 12), "x"),
        ("lark", 'start: "a"\nb: (\n', (2, 5), "')'"),
        ("lark", 'start: "\u00e9" (\n', (1, 13), "')'"),
        ("lark", 'start: "a"\n\nb: "abc\n', (3, 8), "Lark"),
        ("lark", 'start: "a" b\nb: "x" /[z-a]/\n', (2, 4), "range"),
        ("lark", 'start: "a"\nx: %json {\n"type": 3,}', (3, 11), "comma"),
        ("lark", 'start: %json {"type": "foo",}', (1, 29), "comma"),
        ("json_schema", '{"a":\n 1,}', (2, 4), "JSON"),
        ("regex", r"\d/\d(", (1, 6), "group"),
        ("regex", "a\nbc)", (2, 3), "group"),
    ],
)
def test_a_wrong_grammar_is_one_sentence_with_line_and_column(
    kind: Kind, text: str, place: tuple[int, int], word: str
) -> None:
    with pytest.raises(DerbyError) as caught:
        compile_grammar(GrammarSource(kind, text, "test"), BYTES)
    sentence = str(caught.value)
    assert f"is wrong at line {place[0]}, column {place[1]}: " in sentence
    assert word in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("kind", "text", "word"),
    [
        ("lark", 'star: "a"', "start"),
        ("json_schema", '{"type": "foo"}', "foo"),
        ("json_schema", '{"maximum": 1e999}', "number"),
        ("json_schema", '{"maximum": ' + "9" * 5000 + "}", "number"),
        ("json_schema", "[" * 5000, "nested"),
        ("json_schema", '{"a":' * 200 + "1" + "}" * 200, "recursion"),
        ("json_schema", '{"pattern": "("}', "group"),
    ],
)
def test_errors_without_a_place_are_sentences_too(kind: Kind, text: str, word: str) -> None:
    with pytest.raises(DerbyError, match=rf"is wrong.*{word}[^\n]*\.$"):
        compile_grammar(GrammarSource(kind, text, "test"), BYTES)


def test_a_source_is_checked_when_made() -> None:
    GrammarSource("lark", "a" * MAX_BYTES, "longest")
    with pytest.raises(DerbyError, match=rf"{MAX_BYTES + 2} bytes.*{MAX_BYTES}"):
        GrammarSource("lark", "a" * MAX_BYTES + "\u00e9", "too long")
    with pytest.raises(DerbyError, match="empty"):
        GrammarSource("regex", " \n", "blank")
    with pytest.raises(DerbyError, match="surrogate"):
        GrammarSource("regex", "a\ud800", "broken")
    with pytest.raises(DerbyError, match="gbnf"):
        GrammarSource("antlr", "start: x", "unknown")  # pyright: ignore[reportArgumentType]


def test_a_dead_end_is_an_error_that_quotes_the_text_before_it() -> None:
    constraint = compile_grammar(lark('start: "hello" x | "help"\nx: x "c"'), BYTES)
    constraint.advance(list(b"hello"))
    with pytest.raises(DerbyError, match=r"cannot continue after 'hello'"):
        constraint.masks_along(Proposal())
    with pytest.raises(DerbyError, match="at the start"):
        compile_grammar(lark('start: start "a"'), BYTES).masks_along(Proposal())


def test_a_panic_in_native_code_is_an_error_for_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """pyo3's PanicException is no Exception: it would take a worker's whole loop down."""

    class PanicException(BaseException):
        pass

    def panic(*_: object, **__: object) -> None:
        raise PanicException

    monkeypatch.setattr("llguidance.LLMatcher", panic)
    with pytest.raises(DerbyError, match="crash"):
        compile_grammar(lark('start: "a"'), BYTES)
