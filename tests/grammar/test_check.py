"""Whatever an untrusted grammar does to the child, its parent gets an answer or one sentence."""

import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest.mock import patch

import pytest

from backend.errors import DerbyError
from backend.grammar import check as module
from backend.grammar.check import (
    MAX_TEXT,
    CheckFailedError,
    Fit,
    StoppedError,
    check,
    judge_apart,
)
from backend.grammar.compile import compile_matcher
from backend.grammar.grammars import MAX_VERDICTS, GrammarCompiler, Grammars
from backend.grammar.sources import GrammarSource, examples, shipped
from backend.processes import from_lasting_thread
from backend.text import ByteTokenizer

ROOT = Path(__file__).resolve().parents[2]
GOOD = GrammarSource("lark", 'start: "a" /[0-9]+/', "good")
#: The greedy first lexeme leaves nothing for the second: llguidance forces one more "a" for ever.
ENDLESS = GrammarSource("lark", "start: /a+/ /a+/", "endless")
#: Its least common multiple makes an automaton that grows by 70 MiB a second.
HOG = GrammarSource(
    "json_schema", json.dumps({"allOf": [{"multipleOf": n} for n in (9973, 9967, 9949)]}), "hog"
)


def answered(definition: str, text: str) -> Fit:
    """What the child would say, in this process."""
    return Fit(**module._answer({"definition": definition, "text": text}))


def test_fit_tells_what_the_language_says() -> None:
    """Every text of up to four characters, against the finite language written out."""
    language = {"ab\u00e9", "ab\u00e9\u00e9", "a\u20ac", "c"}
    grammar = 'start: "a" ("b\u00e9" "\u00e9"? | "\u20ac") | "c"'
    definition = json.dumps({"grammars": [{"lark_grammar": grammar}]})
    beginnings = {text[:n] for text in language for n in range(len(text) + 1)}
    for length in range(5):
        for letters in itertools.product("ab\u00e9\u20acc", repeat=length):
            text = "".join(letters)
            accepted = max(n for n in range(length + 1) if text[:n] in beginnings)
            fit = answered(definition, text)
            assert fit.accepted == accepted
            assert accepted < length or fit.accepting == (text in language)


@pytest.mark.parametrize("name", shipped())
def test_what_ships_would_pass_untrusted(name: str) -> None:
    """Visitors start from these."""
    text = examples(name).accept[-1]
    assert check(shipped()[name], text) == Fit(len(text), accepting=True)


def test_any_text_up_to_a_length_is_tried() -> None:
    anything = GrammarSource("lark", r"start: /(.|\n)*/", "test")
    assert check(anything, "\U0001f600" * MAX_TEXT).accepted == MAX_TEXT
    with pytest.raises(DerbyError, match=rf"{MAX_TEXT + 1}; .*{MAX_TEXT}"):
        check(anything, "a" * (MAX_TEXT + 1))
    assert check(anything, "\0\n\r\u2028\ud800").accepted == 5


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
    ("number", "error", "sentence"),
    [(signal.SIGKILL, CheckFailedError, "killed"), (signal.SIGSEGV, DerbyError, "simplify")],
)
def test_a_child_that_dies_is_one_sentence(
    number: signal.Signals, error: type[DerbyError], sentence: str
) -> None:
    def kill(start: object) -> object:
        child = from_lasting_thread(start)  # type: ignore[arg-type]
        child.send_signal(number)
        return child

    with (
        patch.object(module, "from_lasting_thread", kill),
        pytest.raises(error, match=sentence),
    ):
        check(GOOD)


def test_an_answer_that_is_not_wanted_or_does_not_come_condemns_no_grammar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grammars, looks = Grammars(), iter([False, False, True, True])
    begun = time.monotonic()
    with pytest.raises(StoppedError):
        grammars.check(ENDLESS, lambda: next(looks))
    assert time.monotonic() - begun < 3
    monkeypatch.setattr(module, "PATIENCE", -5.0)
    with pytest.raises(CheckFailedError, match="try again"):
        grammars.check(GOOD)
    monkeypatch.undo()
    grammars.check(GOOD)


def test_verdicts_are_remembered_and_what_ships_is_trusted() -> None:
    """Twelve columns with one endless grammar took twelve deadlines."""
    grammars = Grammars()
    with patch("backend.grammar.grammars.check") as asked:
        for source in shipped().values():
            grammars.check(source)
        assert not asked.called
        asked.side_effect = DerbyError("it is wrong")
        for _ in range(3):
            with pytest.raises(DerbyError, match="it is wrong"):
                grammars.check(ENDLESS)
        assert asked.call_count == 1
        asked.side_effect = None
        for n in range(MAX_VERDICTS):
            grammars.check(GrammarSource("lark", f'start: "{n}"', "good"))
        grammars.check(GOOD)
        assert len(grammars._verdicts) <= MAX_VERDICTS


def test_a_column_compiles_once_what_its_slots_share_and_each_starts_at_the_beginning() -> None:
    compiler = GrammarCompiler(Grammars(), ByteTokenizer())
    compiler.prepare(shipped()["yes_no"])
    with patch("backend.grammar.grammars.compile_matcher", wraps=compile_matcher) as compiled:
        first, second = (compiler.compile(shipped()["yes_no"]) for _ in range(2))
        start = first.expected()
        first.advance(list(b"Yes"))
        third = compiler.compile(shipped()["yes_no"])
        assert first.expected() != start == second.expected() == third.expected()
        assert compiled.call_count == 1


def test_the_child_imports_nothing_heavy() -> None:
    program = (
        "import sys; from backend.grammar.check import _answer\n"
        "_answer({'definition': '', 'text': ''})\n"
        "assert not {'torch', 'transformers', 'openvino', 'gradio'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


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
