"""Whatever an untrusted grammar or native code does, there is an answer or one sentence in bounded
time and memory, and this process lives.
"""

import itertools
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from grammar_texts import accepts

from backend.cli.main import app
from backend.errors import DerbyError
from backend.grammar import check as module
from backend.grammar.check import MAX_TEXT, Fit, check, judge_apart
from backend.grammar.constraint import GrammarCompiler
from backend.grammar.sources import GrammarSource, Kind, shipped
from backend.tokenizer import ByteTokenizer

ROOT = Path(__file__).resolve().parents[2]
#: The greedy first lexeme leaves nothing for the second: llguidance forces one more "a" for ever.
ENDLESS = GrammarSource("lark", "start: /a+/ /a+/", "endless")
#: Its least common multiple makes an automaton that grows by 70 MiB a second.
HOG = GrammarSource(
    "json_schema", json.dumps({"allOf": [{"multipleOf": n} for n in (9973, 9967, 9949)]}), "hog"
)


def test_fit_is_what_the_language_says() -> None:
    """Every text of up to four characters, against the finite language written out."""
    language = {"ab\u00e9", "ab\u00e9\u00e9", "a\u20ac", "c"}
    source = GrammarSource("lark", 'start: "a" ("b\u00e9" "\u00e9"? | "\u20ac") | "c"', "listed")
    beginnings = {text[:n] for text in language for n in range(len(text) + 1)}
    for length in range(5):
        for letters in itertools.product("ab\u00e9\u20acc", repeat=length):
            text = "".join(letters)
            accepted = max(n for n in range(length + 1) if text[:n] in beginnings)
            fit = module._fit(source, text)
            assert fit.accepted == accepted
            assert accepted < length or fit.accepting == (text in language)


def test_any_text_up_to_a_length_is_tried() -> None:
    anything = GrammarSource("lark", r"start: /(.|\n)*/", "test")
    assert check(anything, "\U0001f600" * MAX_TEXT).accepted == MAX_TEXT
    with pytest.raises(DerbyError, match=rf"{MAX_TEXT + 1}; .*{MAX_TEXT}"):
        check(anything, "a" * (MAX_TEXT + 1))
    assert check(anything, "\0\n\r\u2028\ud800").accepted == 5


@pytest.mark.parametrize(
    ("file", "content", "text", "code"),
    [
        ("a.regex", "ab+", "abb", 0),
        ("a.regex", "ab+", None, 0),
        ("a.regex", "ab+", "a", 1),
        ("a.regex", "b*", "", 0),
        ("a.lark", 'start: "ab"', "ac", 1),
        ("a.gbnf", 'root ::= "a"+', "aa", 2),
        ("a.schema.json", '{"type": "strin"}', '""', 2),
        ("a.schema.json", '{"format": "regex"}', '"("', 1),
        ("a.schema.json", '{"title": 5}', "1", 1),  # the judge gives up: unchecked
    ],
)
def test_the_exit_code_says_whether_a_whole_text_fits(
    tmp_path: Path, file: str, content: str, text: str | None, code: int
) -> None:
    from typer.testing import CliRunner

    (tmp_path / file).write_text(content)
    more = [] if text is None else ["--text", text]
    answer = CliRunner().invoke(app, ["grammar", str(tmp_path / file), *more])
    assert answer.exit_code == code
    assert ("It works" in answer.stdout) == (code == 0)
    assert ("The whole text fits" in answer.stdout) == (code == 0 and bool(text))


@pytest.mark.parametrize(("count", "text"), [(260, '{"p259": "x"}'), (3000, None)])
def test_a_schema_is_good_if_what_it_has_can_be_written(count: int, text: str | None) -> None:
    """Many optional properties stopped at "{", and the check said that they work."""
    names = {f"p{i}": {"type": "string"} for i in range(count)}
    schema = {"type": "object", "properties": names, "additionalProperties": False}
    source = GrammarSource("json_schema", json.dumps(schema), "wide")
    if text is not None:
        assert check(source, text) == Fit(len(text), accepting=True, verdict="valid")
        return
    with pytest.raises(DerbyError, match=r"cannot be followed.*simplify"):
        check(source, "{")


def test_a_good_text_is_not_cut_for_want_of_fuel() -> None:
    pattern = r"^(?:\S+\s+){0,19}\S+$"
    schema = {"type": "string", "maxLength": 200, "pattern": pattern}
    source = GrammarSource("json_schema", json.dumps(schema), "words")
    text = json.dumps(" ".join(["one two three four five six seven eight nine ten"] * 2))
    assert check(source, text, deadline=30).covers(text)
    assert accepts(source, text)


@pytest.mark.parametrize(
    ("schema", "text", "fit"),
    [
        (
            {"properties": {"a": {}, "b": {}}},
            '{"b": 1, "a": 2}',
            Fit(11, False, "valid"),
        ),
        ({"items": {"additionalProperties": False}}, "[{}]", Fit(4, True, "valid")),
        ({"not": {"const": 1}}, "1", Fit(1, True, "invalid", "", 'Unimplemented keys: ["not"]')),
    ],
)
def test_a_fit_says_what_the_judge_says(schema: object, text: str, fit: Fit) -> None:
    answer = check(GrammarSource("json_schema", json.dumps(schema), "test"), text)
    assert replace(answer, why=answer.why[: len(fit.why)]) == fit


def test_what_would_run_for_ever_is_stopped_at_the_deadline() -> None:
    with pytest.raises(DerbyError, match="simplify"):
        check(ENDLESS, deadline=0.3)


def test_what_swells_is_stopped_at_the_memory_limit() -> None:
    program = (
        "import sys; from backend.grammar import check\n"
        "check.MEMORY = 32 << 20; sys.exit(check.main())"
    )
    command = [sys.executable, "-c", program]

    def small(_: object, **pipes: object) -> object:
        return popen(command, **pipes)  # type: ignore[call-overload]

    popen = subprocess.Popen
    with (
        patch.object(module.subprocess, "Popen", small),
        pytest.raises(DerbyError, match="simplify"),
    ):
        check(HOG, deadline=60)


@pytest.mark.parametrize(
    ("number", "sentence", "times"),
    [(signal.SIGKILL, "killed", 2), (signal.SIGSEGV, "simplify", 1)],
)
def test_a_child_that_dies_is_one_sentence_and_only_a_grammars_own_doing_is_remembered(
    number: signal.Signals, sentence: str, times: int
) -> None:
    started, popen = 0, subprocess.Popen

    def kill(*arguments: Any, **named: Any) -> object:
        nonlocal started
        started += 1
        child = popen(*arguments, **named)
        child.send_signal(number)
        return child

    source = GrammarSource("lark", f'start: "{number}"', "good")
    with patch.object(module.subprocess, "Popen", kill):
        for _ in range(2):
            with pytest.raises(DerbyError, match=sentence):
                check(source)
        GrammarCompiler(ByteTokenizer()).prepare(*shipped().values())
    assert started == times


def test_a_machine_that_is_too_busy_condemns_no_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    source = GrammarSource("lark", 'start: "a" /[0-9]+/', "good")
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    with pytest.raises(DerbyError, match="try again"):
        check(source)
    monkeypatch.undo()
    check(source)


def test_a_text_is_judged_apart_and_nothing_that_it_causes_is_raised() -> None:
    """The schema is anybody's. Had the pattern given up, its `not` would have been called valid."""
    assert judge_apart('{"type": "array"}', "[1]").verdict == "valid"
    assert judge_apart("{}", f'"{"a" * 200_000}"').verdict == "valid"  # more than a pipe holds
    hostile = json.dumps({"not": {"pattern": "^(a|a)*(?=x)$"}})
    endless = judge_apart(hostile, json.dumps("a" * 60 + "b"), deadline=0.3)
    assert endless.verdict == "unchecked"
    assert "too much time" in endless.why


@pytest.mark.parametrize(
    ("kind", "text", "refused"),
    [
        ("regex", "(" * 8_000 + "a" + ")" * 8_000, True),
        ("json_schema", "[" * 16_000, True),
        ("json_schema", '{"not":' * 2000 + "{}" + "}" * 2000, True),
        ("lark", "start: " + "(" * 90 + '"a"' + ")*" * 90, True),
        ("json_schema", '{"maximum": ' + "9" * 5000 + "}", True),
        ("regex", "(.*a){1000}", False),
        ("lark", "start: A\nA: (/a{1000}/){1000}", False),
        ("lark", 'start: "\\ud800"', True),
        ("lark", "start: A\nA: B\nB: A", True),
        ("lark", 'start[stop=/(/]: "a"', True),
    ],
)
def test_a_hostile_grammar_is_refused_or_compiles(kind: Kind, text: str, refused: bool) -> None:
    try:
        check(GrammarSource(kind, text, "hostile"))
    except DerbyError:
        return
    assert not refused
