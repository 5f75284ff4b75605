"""Whatever an untrusted grammar or native code does, there is an answer or one sentence in bounded
time and memory, and this process lives.
"""

import itertools
import json
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from grammar_texts import accepts

from backend.cli.main import app
from backend.errors import DerbyError
from backend.grammar import check as module
from backend.grammar.check import MAX_TEXT, Fit, StoppedError, check, judge_apart
from backend.grammar.constraint import GrammarCompiler, bounded
from backend.grammar.sources import GrammarSource, Kind, shipped
from backend.racing.hosts import cause_of_death
from backend.tokenizer import ByteTokenizer

ROOT = Path(__file__).resolve().parents[2]
GOOD = GrammarSource("lark", 'start: "a" /[0-9]+/', "good")
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
        ("a.lark", 'start: <|a|> "<b>" <[99999]>?', "<|a|><b>", 0),
        ("a.lark", 'start: <|a|> "<b>" <[99999]>', "<|a|><b>", 1),
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


def properties(count: int) -> GrammarSource:
    """A schema of optional properties; each adds some four items to a row of the parser."""
    names = {f"property{i}": {"type": "string"} for i in range(count)}
    schema = {"type": "object", "properties": names, "additionalProperties": False}
    return GrammarSource("json_schema", json.dumps(schema), "wide")


def test_a_schema_is_good_if_what_it_has_can_be_written() -> None:
    """260 optional properties stopped at "{", and the check said that they work."""
    text = json.dumps({f"property{i}": "x" for i in (0, 7, 259)})
    assert check(properties(260), text) == Fit(len(text), accepting=True, verdict="valid")
    behind = GrammarSource(
        "json_schema",
        json.dumps({"items": json.loads(properties(3000).text), "type": "array"}),
        "wide",
    )
    with pytest.raises(DerbyError, match=r"cannot be followed.*simplify"):
        check(behind, f"[{text}]")


@pytest.mark.parametrize(("most", "longest"), [(19, 200), (99, 2000)])
def test_a_good_text_is_not_cut_for_want_of_fuel(most: int, longest: int) -> None:
    pattern = rf"^(?:\S+\s+){{0,{most}}}\S+$"
    schema = {"type": "string", "maxLength": longest, "pattern": pattern}
    source = GrammarSource("json_schema", json.dumps(schema), "words")
    text = json.dumps(" ".join(["one two three four five six seven eight nine ten"] * 2))
    assert check(source, text, deadline=30).covers(text)
    assert accepts(source, text) or most > 19  # behind one mask


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


def test_an_answer_that_is_not_wanted_or_does_not_come_condemns_no_grammar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = iter([False, False, True, True])
    with pytest.raises(StoppedError):
        check(ENDLESS, stopped=lambda: next(looks))
    monkeypatch.setattr(module, "PATIENCE", -5.0)
    with pytest.raises(DerbyError, match="try again"):
        check(GOOD)
    monkeypatch.undo()
    check(GOOD)


def test_a_text_is_judged_apart_and_nothing_that_it_causes_is_raised() -> None:
    """The schema is anybody's. Had the pattern given up, its `not` would have been called valid."""
    assert judge_apart('{"type": "array"}', "[1]").verdict == "valid"
    assert judge_apart("{}", f'"{"a" * 200_000}"').verdict == "valid"  # more than a pipe holds
    hostile = json.dumps({"not": {"pattern": "^(a|a)*(?=x)$"}})
    endless = judge_apart(hostile, json.dumps("a" * 60 + "b"), deadline=0.3)
    assert endless.verdict == "unchecked"
    assert "too much time" in endless.why
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    stopped = judge_apart(hostile, json.dumps("a" * 60 + "b"), deadline=60, stopped=stop.is_set)
    assert stopped.verdict == "unchecked"


def chain(length: int) -> str:
    """`length` definitions that each need the next one, twice."""
    links: dict[str, object] = {
        f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(length)
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

#: A grammar, and whether it is refused; else it may compile.
CASES: dict[str, tuple[Kind, str, bool]] = {
    "8,000 groups": ("regex", "(" * 8_000 + "a" + ")" * 8_000, True),
    "16,000 brackets of JSON": ("json_schema", "[" * 16_000, True),
    "2,000 schemas": ("json_schema", '{"not":' * 2000 + "{}" + "}" * 2000, True),
    "a tower of stars": ("lark", "start: " + "(" * 90 + '"a"' + ")*" * 90, True),
    "terminals that double": ("lark", doubled("A"), True),
    "rules that double": ("lark", doubled("a"), False),
    "2^60 by allOf": ("json_schema", chain(60), False),
    "products of anyOf": ("json_schema", json.dumps(PRODUCTS), False),
    "a circle": (
        "json_schema",
        '{"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}',
        True,
    ),
    "a number of 5,000 digits": ("json_schema", '{"maximum": ' + "9" * 5000 + "}", True),
    "an inverted range": ("regex", "a{5,2}", True),
    "1,000 searches": ("regex", "(.*a){1000}", False),
    "a terminal of a million": ("lark", "start: A\nA: (/a{1000}/){1000}", False),
    "26 searches at once": (
        "lark",
        "start: A\nA: " + " & ".join(f"/(.*{chr(97 + i)}.*){{5}}/" for i in range(26)),
        False,
    ),
}


def refusal(kind: Kind, text: str) -> str:
    """What refuses a grammar; "" if it compiles."""
    try:
        check(GrammarSource(kind, text, "hostile"))
    except DerbyError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_grammar_is_refused_or_compiles(name: str) -> None:
    kind, text, refused = CASES[name]
    assert refusal(kind, text) or not refused


@pytest.mark.parametrize(
    "text",
    [
        'start: "abc', "start: %json {", "start: @0", "start: <nope", 'start[stop=/(/]: "a"',
        "start: A\nA: B\nB: A", 'start: "\\ud800"', "start: /(?=a)/", "\u00e9",
        "start: a\na[max_tokens=3]: /[a-f]+/", "start: a\na [lazy, temperature = 0.7]: /[a-f]+/",
    ],
)  # fmt: skip
def test_malformed_lark_is_refused(text: str) -> None:
    assert refusal("lark", text)


#: A busy loop stands for native code that never returns, sleep for a machine that is halted.
LOOP = """
import time
from backend.grammar.constraint import bounded, end_process_after
end_process_after(0.3)
with bounded():
    with bounded():
        pass
    time.sleep(0.6)
    print("alive", flush=True)
    while {loop}:
        pass
print("done", flush=True)
"""


def ran(*, loop: bool) -> tuple[int, list[str]]:
    command = [sys.executable, "-c", LOOP.format(loop=loop)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout.split()


def test_a_call_that_never_returns_ends_its_process_and_waiting_does_not_count() -> None:
    assert ran(loop=True) == (-signal.SIGPROF, ["alive"])
    assert ran(loop=False) == (0, ["alive", "done"])
    assert "grammar took longer" in cause_of_death(-signal.SIGPROF)


def test_a_panic_is_a_sentence_and_nothing_else_is_touched() -> None:
    # As pyo3 defines it: no Exception.
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(DerbyError, match="simplify"), bounded():
        raise panic
    with pytest.raises(KeyboardInterrupt), bounded():
        raise KeyboardInterrupt
