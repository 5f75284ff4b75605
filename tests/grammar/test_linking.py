"""Grammar files import one another; what cannot be linked is told with file, line and column."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from lib import compile_grammar
from llguidance import LLMatcher, LLTokenizer

from backend.errors import DerbyError
from backend.grammar.definition import definition, parts_of
from backend.grammar.lark.linking import MAX_LINKED_BYTES, MAX_MODULES
from backend.grammar.messages import Part, explain
from backend.grammar.sources import MAX_BYTES, GrammarSource, grammar_from_file
from backend.text import ByteTokenizer
from backend.types import Proposal

BYTES = LLTokenizer("byte")
Files = Mapping[str, "str | GrammarSource"]


def lark(text: str, files: Files | None = None, name: str = "test") -> GrammarSource:
    """A grammar, and the files that it may import."""
    modules = (
        lark(file, name=module) if isinstance(file, str) else file
        for module, file in (files or {}).items()
    )
    return GrammarSource("lark", text, name, tuple(modules))


def linked(text: str, files: Files) -> tuple[Part, ...]:
    return parts_of(lark(text, files))


def compiled(parts: tuple[Part, ...]) -> LLMatcher:
    return LLMatcher(BYTES, definition(parts), log_level=0)


def texts(text: str, files: Files, tried: str) -> list[str]:
    """Which of the texts, between bars, the linked grammar has."""
    made = compiled(linked(text, files))
    assert not made.is_error(), made.get_error()
    found: list[str] = []
    for candidate in tried.split("|"):
        made.reset()
        data = list(candidate.encode())
        if made.try_consume_tokens(data) == len(data) and made.is_accepting():
            found.append(candidate)
    return found


#: A file with an ignore of its own, terminals made of others, and one from Lark's own.
LISTS = """// Lists of names
start: "[" names? "]"
names: NAME ("," names)?
NAME: LETTER+ (("_" | DIGIT)* LETTER)? // as in Lark
LETTER: /[a-z]/
  | "é"
%import common.DIGIT
%ignore / /
"""


def test_a_rule_keeps_its_files_ignore_and_a_terminal_takes_the_importers() -> None:
    text = '%import .lists.start -> list\n%import .lists.NAME\nstart: "<" list ">" NAME\n'
    tried = "<[a, b ]>a|<[]>bé_0c|< []>a|<[]> a|<[a_]>b|<[a_]>b_"
    assert texts(text, {"lists": LISTS}, tried) == ["<[a, b ]>a", "<[]>bé_0c"]


@pytest.mark.parametrize(
    ("statement", "local", "accepted"),
    [
        ("%import .lists.names", "names", "a, b"),
        ("%import .lists.names -> them", "them", "a, b"),
        ("%import .lists (NAME, names) // both", 'NAME "=" names', "a=b, c"),
        ("%import .lists.NAME -> WORD", "WORD", "b"),
        ("%import .lists.DIGIT", "DIGIT", "7"),
        ("%import .lists.DIGIT -> D\n%import .lists.DIGIT -> E", "D E", "78"),
        ("%import common.INT -> NUMBER", "NUMBER", "12"),
        ("%import common (INT, WS)", "WS INT", " 12"),
        ("%import .lists.start -> a\n%import .lists.names -> b", "a b", "[ a]b"),
    ],
)
def test_each_form_of_import_brings_its_names(statement: str, local: str, accepted: str) -> None:
    text = f"{statement}\nstart: {local}\n"
    assert texts(text, {"lists": LISTS}, f"{accepted}|{accepted};") == [accepted]


def test_imports_of_imports_and_files_of_other_kinds() -> None:
    files: Files = {
        "outer": '%import .inner.start\n%import .inner (B, C)\nboth: saaaa start "," B C\nsaaaa:\n',
        "inner": 'start: B | saaaa\nB: /b+/\nsaaaa: "s"\n%import .deep.T -> C\n',
        "deep": 'start: "?"\nT: U | "t"\nU: "u" "v"?\n',
        "null": GrammarSource("json_schema", '{"const": null}', "null"),
        "digits": GrammarSource("regex", "[0-9]/[0-9]", "digits"),
        "signs": GrammarSource("gbnf", 'root ::= "+"* "+-"', "signs"),
    }
    imports = "".join(f"%import .{name}.start -> {name}\n" for name in ("null", "digits", "signs"))
    text = imports + "%import .outer.both\nstart: null digits signs both\n"
    tried = "null1/2+-bb,buv|null1/2++-s,but|null1/2+-b,bu|null1/2+b,bu"
    assert texts(text, files, tried) == ["null1/2+-bb,buv", "null1/2+-b,bu"]


def test_the_same_rule_of_a_file_is_linked_once_and_no_names_clash() -> None:
    files: Files = {
        "a": '%import .c.x\nstart: x T\nT: "t"\n',
        "b": '%import .c.x\nstart: x T\nT: "u"\n',
        "c": 'x: X\nX: "x"\nstart: "never"\n',
    }
    text = (
        "%import .a.start -> a\n%import .b.start -> b\n%import .a.T\n%import .b.T -> B__T\n"
        'start: a b T B__T C__X\nC__X: "own"\n'
    )
    parts = linked(text, files)
    assert [part.name for part in parts] == ["", "a__start", "b__start", "c__x"]
    assert texts(text, files, "xtxutuown|xtxuttown") == ["xtxutuown"]


@pytest.mark.parametrize(
    ("text", "where", "word"),
    [
        ("start: x\n%import .nope.start -> x", "The grammar is wrong at line 2, column 15", "nope"),
        ("start: x\n%import .lists.nams", "The grammar is wrong at line 2, column 16", "'names'"),
        ("start: X\n%import .lists.XY", "The grammar is wrong at line 2, column 16", "'XY'"),
        ("%import .lists.start\nstart: x", "line 1, column 16", "'-> lists_start'"),
        ("%import .lists.NAME\nNAME: /x/\nstart: NAME", "line 1, column 16", "'-> LISTS_NAME'"),
        ("%import .lists.NAME\n%import common.INT -> NAME\nstart: NAME", "line 2, column 23", "1"),
        ("%import .lists.NAME -> name\nstart: name", "line 1, column 24", "capital"),
        ("%import .lists.names -> T\nstart: T", "line 1, column 25", "small"),
        ("%import lists.names\nstart: names", "line 1, column 9", "dot before"),
        ("%import .lists names\nstart: names", "line 1, column 1", "must be one of"),
        ("%import .a.b.c\nstart: c", "line 1, column 1", "must be one of"),
        ("%import .lists (names -> n)\nstart: n", "line 1, column 1", "must be one of"),
        ("%import .bad.start -> x\nstart: x", "'bad' is wrong at line 3, column 4", "Lark"),
        ("%import .odd.T\nstart: T", "The grammar 'odd' is wrong at line 2, column 8", "'NOPE'"),
        ("%import .plus.start -> x\nstart: x", "GBNF grammar 'plus' is wrong at line 1", "'y'"),
    ],
)
def test_imports_that_lead_nowhere_are_told_with_their_place(
    text: str, where: str, word: str
) -> None:
    files: Files = {
        "lists": LISTS,
        "bad": 'start: "a"\n\nb: "abc\n',
        "odd": "start: T\nT: /a/ NOPE\n",
        "plus": GrammarSource("gbnf", "root ::= y", "plus"),
    }
    with pytest.raises(DerbyError, match=f"{where}.*: .*{word}"):
        linked(text, files)


def test_circles_are_told_as_a_chain() -> None:
    files: Files = {
        "a": "start: x\n%import .b.start -> x",
        "b": 'start: "b" X\n%import .c.T -> X',
        "c": "start: y\nT: /t/\n%import .a.start -> y",
    }
    with pytest.raises(
        DerbyError, match=r"'c' is wrong at line 3, column 12: .*another: a -> b -> c -> a\."
    ):
        linked("start: x\n%import .a.start -> x", files)
    with pytest.raises(DerbyError, match=r"'c' is wrong .*a -> b -> c -> a\."):
        linked(str(files["a"]), files)
    with pytest.raises(DerbyError, match=r"'me' is wrong at line 1, column 13: .*me -> me\."):
        linked("start: x\n%import .me.start -> x", {"me": "%import .me.start -> x\nstart: x"})


def test_files_and_bytes_are_limited() -> None:
    chain = {f"f{i}": f'%import .f{i + 1}.start -> x\nstart: "a" x' for i in range(MAX_MODULES)}
    assert len(linked("%import .f1.start -> x\nstart: x", {**chain, f"f{MAX_MODULES}": "start:"}))
    with pytest.raises(DerbyError, match=f"line 1, column .*limit of {MAX_MODULES}"):
        linked("%import .f0.start -> x\nstart: x", {**chain, f"f{MAX_MODULES}": "start:"})
    rules = "".join(f"r{i}: /a/\n" for i in range(1000))
    half = rules + "// " + "x" * (MAX_BYTES // 2 - len(rules))
    for count, fits in ((6, True), (9, False)):
        text = f"%import .half ({', '.join(f'r{i}' for i in range(count))})\nstart: r0\n"
        if fits:
            assert len(linked(text, {"half": half})) == count + 1
        else:
            with pytest.raises(DerbyError, match=f"{MAX_LINKED_BYTES}"):
                linked(text, {"half": half})


@pytest.mark.parametrize(
    ("text", "file", "place", "word"),
    [
        ('start: y\n\n%import .a.x -> y\nz: "é" (', "The grammar", "4, column 9", "'\\)'"),
        ("%import .bad.start -> x\nstart: x", "The grammar 'bad'", "3, column 14", "gone"),
        ("%import .bad.y -> x\nstart: x", "The grammar 'bad'", "3, column 14", "gone"),
        ("%import .regex.T\nstart: T", "The grammar 'regex'", "3, column 4", "range"),
        ("%import .regex.U -> T\nstart: T", "The grammar 'regex'", "3, column 4", "range"),
        ("%import .group.start -> x\nstart: x", "expression 'group'", "1, column 2", "group"),
        ('%import .a.x\nstart: x\ny: %json {"a": 1,}', "The grammar", "3, column 18", "comma"),
        ("%import .a (\n  x)\n\nstart: x nope", "The grammar", "4, column 10", "nope"),
    ],
)
def test_what_llguidance_finds_is_told_in_the_file_that_it_is_in(
    text: str, file: str, place: str, word: str
) -> None:
    files: Files = {
        "a": 'start: "a"\nx: "x"\n',
        "bad": '\r\n// é\r\ny: "é" start gone\r\nstart: y // \r\n',
        "regex": 'start: "a"\n\nT: "1" | /[z-a]/\nU: "u" T',
        "group": GrammarSource("regex", "a(", "group"),
    }
    parts = linked(text, files)
    error = explain(compiled(parts).get_error(), parts)
    assert re.search(f"{file} is wrong at line {place}: .*{word}", str(error))


def test_a_schema_that_is_wrong_is_named_though_llguidance_shows_no_line_of_it() -> None:
    files: Files = {
        "good": GrammarSource("json_schema", '{"type": "null"}', "good"),
        "bad": GrammarSource("json_schema", '{"type": "foo"}', "bad"),
    }
    text = "%import .good.start -> x\n%import .bad.start -> y\nstart: x y"
    parts = linked(text, files)
    error = explain(compiled(parts).get_error(), parts)
    assert re.search("The JSON Schema 'bad' is wrong at #: .*foo", str(error))


def test_a_grammar_without_imports_is_left_as_it_is() -> None:
    for text in ('start: "a', "start: x\n", "%import common.NOPE\nstart: NOPE", 'start: "a" )\n'):
        assert [part.grammar for part in linked(text, {})] == [{"lark_grammar": text}]


def test_a_users_file_brings_the_files_beside_it_that_it_imports(tmp_path: Path) -> None:
    """Its own before those that ship; of those that do not matter, none."""
    texts = {
        "main.lark": "%import .date.start -> day\n%import .yes_no.start -> answer\n"
        'start: day " " answer',
        "date.lark": '%import .deep.WORD -> WORD\nstart: "on " WORD',
        "deep.lark": "WORD: /[A-Z][a-z]+/\nstart: WORD",
        "other.lark": "start: (",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    source = grammar_from_file(tmp_path / "main.lark")
    assert {module.name for module in source.modules} == {"date", "deep"}
    constraint = compile_grammar(source, ByteTokenizer())
    draft = Proposal.chain([*b"on Monday No, because it rains.", ByteTokenizer.EOS])
    assert constraint.cut(draft) is draft
    (tmp_path / "deep.lark").write_text("start: (", encoding="utf-8")
    with pytest.raises(DerbyError, match="'deep'"):
        compile_grammar(grammar_from_file(tmp_path / "main.lark"), ByteTokenizer())
