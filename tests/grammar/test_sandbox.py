"""Whatever happens to the sandbox's child, its parent gets an answer or one clear sentence."""

import itertools
import json
import os
import select
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from small_tokenizer import TOKENS, small_tokenizer

from backend.errors import DerbyError
from backend.grammar.sandbox import parent as module
from backend.grammar.sandbox.parent import MAX_TEXT, Sandbox
from backend.grammar.sources import GrammarSource
from backend.text import ByteTokenizer, HfTokenizer, Tokenizer

BYTES = ByteTokenizer()
ROOT = Path(__file__).resolve().parents[2]


class Spelled:
    """A tokenizer that says how its tokens are spelled, as that of a GGUF file does."""

    spelling = (*(bytes([i]) for i in range(256)), b"bc", b"abc", b"")
    special = eos_ids = frozenset({258})
    vocab_size, fingerprint = 259, "spelled"

    def __getattr__(self, name: str) -> Any:
        return getattr(BYTES, name)


def lark(text: str) -> GrammarSource:
    return GrammarSource("lark", text, "test")


def fault(sandbox: Sandbox, source: GrammarSource, tokenizer: Tokenizer = BYTES) -> str:
    """What is wrong with a grammar, "" if it is fit for use."""
    try:
        sandbox.examine(source, tokenizer)
    except DerbyError as error:
        return str(error)
    return ""


GOOD, WRONG = lark('start: "a" /[0-9]+/'), lark("start: nothing")
#: The greedy first lexeme leaves nothing for the second: llguidance forces one more "a" for ever.
ENDLESS = lark("start: /a+/ /a+/")
#: Its least common multiple makes an automaton that grows by 70 MiB a second.
HOG = GrammarSource(
    "json_schema", json.dumps({"allOf": [{"multipleOf": n} for n in (9973, 9967, 9949)]}), "hog"
)


def test_a_grammar_is_fit_or_the_engine_says_why_not(fresh: Sandbox) -> None:
    assert fresh.pid == 0
    assert fault(fresh, GOOD) == ""
    child = fresh.pid
    assert "nothing" in fault(fresh, WRONG)
    assert fault(fresh, GOOD) == ""
    assert fresh.pid == child


def test_explore_tells_what_the_language_says(sandbox: Sandbox) -> None:
    """Every text of up to four characters, against the finite language written out."""
    language = {"ab\u00e9", "ab\u00e9\u00e9", "a\u20ac", "c"}
    grammar = lark('start: "a" ("b\u00e9" "\u00e9"? | "\u20ac") | "c"')
    beginnings = {text[:n] for text in language for n in range(len(text) + 1)}
    for length in range(5):
        for letters in itertools.product("ab\u00e9\u20acc", repeat=length):
            text = "".join(letters)
            accepted = max(n for n in range(length + 1) if text[:n] in beginnings)
            read = text[:accepted]
            after = {b[len(read)] for b in beginnings if b.startswith(read) and b != read}
            found = sandbox.explore(grammar, BYTES, text)
            assert (found.accepted, found.accepting) == (accepted, read in language)
            assert found.error == ""
            # The byte tokenizer has no token for a whole character of two bytes or three.
            shown = {piece[0] for piece in found.expected}
            assert {c for c in shown if c != "\\"} <= after
            assert {c for c in after if c.isascii()} <= shown
            assert bool(shown) == bool(after)


def test_explore_shows_forced_text_at_once_and_refuses_a_wrong_grammar(sandbox: Sandbox) -> None:
    found = sandbox.explore(lark('start: "SELECT " /[a-z]+/'), BYTES, "SELx")
    assert (found.accepted, found.expected) == (3, ("ECT ",))
    with pytest.raises(DerbyError, match="nothing"):
        sandbox.explore(WRONG, BYTES, "a")
    with pytest.raises(DerbyError, match="ever ends"):
        sandbox.explore(lark("start: start"), BYTES, "a")


def test_explore_takes_any_text_up_to_a_length(sandbox: Sandbox) -> None:
    anything = lark(r"start: /(.|\n)*/")
    long = "a" * MAX_TEXT
    assert sandbox.explore(anything, BYTES, long).accepted == MAX_TEXT
    with pytest.raises(DerbyError, match=rf"{MAX_TEXT + 1} characters.*{MAX_TEXT}"):
        sandbox.explore(anything, BYTES, long + "a")
    for text in ("\0\n\r\u2028", "\ud800", "\udfffa\ud83d", "\U0001f600"):
        assert sandbox.explore(anything, BYTES, text).accepted == len(text)


def test_a_grammar_that_loops_in_native_code_is_stopped_at_the_deadline() -> None:
    sandbox = Sandbox(deadline=0.3)
    for _ in range(2):
        with pytest.raises(DerbyError, match=r"longer than 0\.3 s.*simplify"):
            sandbox.examine(ENDLESS, BYTES)
        with pytest.raises(DerbyError, match=r"longer than 0\.3 s"):
            sandbox.explore(ENDLESS, BYTES, "aa")
    sandbox.close()
    patient = Sandbox()
    assert fault(patient, GOOD) == ""
    patient.close()


def test_a_grammar_that_swells_is_stopped_at_the_memory_limit() -> None:
    sandbox = Sandbox(deadline=60, memory=32 << 20)
    with pytest.raises(DerbyError, match=r"more than 32 MiB.*simplify"):
        sandbox.examine(HOG, BYTES)
    assert fault(sandbox, GOOD) == ""
    sandbox.close()


def test_a_child_that_died_while_idle_is_replaced_unnoticed(sandbox: Sandbox) -> None:
    assert fault(sandbox, GOOD) == ""
    first = sandbox.pid
    watched = os.pidfd_open(first)
    os.kill(first, signal.SIGKILL)
    select.select([watched], [], [], 30)
    os.close(watched)
    assert fault(sandbox, GOOD) == ""
    assert sandbox.pid not in (0, first)


@pytest.mark.parametrize(
    ("number", "word"),
    [
        (signal.SIGKILL, "from outside"),
        (signal.SIGSEGV, "crash"),
        (signal.SIGABRT, "1024 MiB"),
    ],
)
def test_a_child_that_dies_midway_is_one_sentence_and_is_replaced(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, word: str
) -> None:
    """A stack that overflows ends in SIGSEGV, an allocation that fails in SIGABRT."""
    assert fault(sandbox, GOOD) == ""
    first = sandbox.pid
    exchange = module._exchange

    def deadly(child: subprocess.Popen[str], line: str) -> str:
        os.kill(child.pid, signal.SIGSTOP)
        os.kill(child.pid, number)
        monkeypatch.undo()
        os.kill(child.pid, signal.SIGCONT)  # what is pending comes before any answer
        return exchange(child, line)

    monkeypatch.setattr(module, "_exchange", deadly)
    with pytest.raises(DerbyError, match=word):
        sandbox.examine(GOOD, BYTES)
    assert fault(sandbox, GOOD) == ""
    assert sandbox.pid != first


def test_what_the_child_raises_is_one_sentence_and_a_new_child(sandbox: Sandbox) -> None:
    """As a panic in native code is: an exception, after which nothing is to be relied on."""
    assert fault(sandbox, GOOD) == ""
    first = sandbox.pid
    other = ByteTokenizer()
    sandbox._names[other] = "unheard of"
    sandbox._loaded.add("unheard of")
    with pytest.raises(DerbyError, match="crash"):
        sandbox.examine(GOOD, other)
    assert fault(sandbox, GOOD) == ""
    assert sandbox.pid != first


def test_the_child_imports_nothing_heavy() -> None:
    program = (
        "import sys, backend.grammar.sandbox.child, llguidance\n"
        "assert not {'torch', 'transformers', 'openvino', 'gradio'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


@pytest.fixture
def lettered(tmp_path: Path) -> HfTokenizer:
    """Few tokens: no byte but those of a to c and the euro sign, and the word "abc"."""
    return small_tokenizer(tmp_path, (*TOKENS, "\u00e2", "\u0124", "\u00ac"))


def test_a_model_s_own_tokens_are_told_and_what_it_cannot_write_is_not_accepted(
    sandbox: Sandbox, lettered: HfTokenizer
) -> None:
    grammar = lark("start: /[a-d\u20ac]+/")
    found = sandbox.explore(grammar, lettered, "ab\u20acabcabdab")
    assert (found.accepted, found.accepting) == (8, True)
    assert set(found.expected) == {"abc", "b", "c"}
    assert sandbox.explore(lark('start: "a" "bc"'), lettered, "a").expected == ("bc",)
    end = sandbox.explore(lark('start: "a" <eos>'), lettered, "a")
    assert (end.accepting, end.expected) == (False, ("<eos>",))
    assert fault(sandbox, lark('start: "d"'), lettered) != ""
    assert fault(sandbox, lark('start: "d"')) == ""


def test_a_gguf_files_own_tokens_are_the_childs(sandbox: Sandbox) -> None:
    """It got bytes in their place, with an end that no byte is: no grammar could be tried."""
    spelled = cast(Tokenizer, Spelled())
    assert sandbox.explore(lark('start: "a" "bc"'), spelled, "a").expected == ("bc",)
    assert fault(sandbox, lark('start: "abc"'), spelled) == ""


def test_tokenizers_do_not_pile_up_in_the_child(fresh: Sandbox, lettered: HfTokenizer) -> None:
    assert fault(fresh, GOOD) == ""
    first = fresh.pid
    for _ in range(3):
        assert fault(fresh, GOOD, ByteTokenizer()) == ""  # the same vocabulary again
        fresh.examine(GOOD, lettered)
    assert fresh.pid == first
    lettered.vocab_size += 1
    fresh._names.clear()
    fresh.examine(GOOD, lettered)
    assert fresh.pid != first
    assert fault(fresh, GOOD) == ""


def test_threads_get_each_their_own_answer(sandbox: Sandbox) -> None:
    def ask(i: int) -> bool:
        grammar = lark(f'start: "{i}" "x"')
        found = sandbox.explore(grammar, BYTES, f"{i}y")
        return found.accepted == len(str(i)) and found.expected == ("x",)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(80)))
