"""Untrusted grammars are refused with the best sentence, once, and what ships passes as one."""

import gc
import os
import select
import signal
import weakref
from collections.abc import Iterator
from dataclasses import replace

import pytest

from backend.errors import DerbyError
from backend.grammar.sandbox import parent
from backend.grammar.sandbox.parent import Sandbox
from backend.grammar.sandbox.vetting import MAX_VERDICTS, Vetting
from backend.grammar.sources import GrammarSource, examples, shipped
from backend.grammar.vocabulary import Vocabularies
from backend.text import ByteTokenizer, Tokenizer
from backend.web.editor import SOUND, Editor

BYTES = ByteTokenizer()
ONE_LETTER = '{"grammars": [{"lark_grammar": "start: \\"a\\""}]}'
ENDLESS = GrammarSource("lark", "start: /a+/ /a+/", "endless")


class Counted(Sandbox):
    """A sandbox that lists the grammars it was asked about."""

    def __init__(self, deadline: float = 5.0) -> None:
        super().__init__(deadline)
        self.asked: list[str] = []

    def check(self, definition: str, tokenizer: Tokenizer) -> str:
        self.asked.append(definition)
        return super().check(definition, tokenizer)


@pytest.fixture(scope="module")
def vetting() -> Iterator[Vetting]:
    sandbox = Sandbox()
    yield Vetting(sandbox)
    sandbox.close()


@pytest.mark.parametrize("name", shipped())
def test_what_ships_would_pass_untrusted(vetting: Vetting, name: str) -> None:
    """Visitors start from these: a copy of one, under another name, must be let through."""
    source = replace(shipped()[name], name="copy")
    vetting.vet(source, BYTES)
    text = examples(name).accept[-1]
    found = vetting.explore(source, BYTES, text)
    assert (found.accepted, found.accepting) == (len(text), True)


def test_the_sentence_is_the_one_that_helps(vetting: Vetting) -> None:
    cases = {
        ("lark", 'start: "a" b\nb: "x" b'): "line 2, column 1: no text of 'b' ever ends",
        ("lark", 'start: "a" b'): 'line 1, column 12: unknown name: "b"',
        ("lark", "start: " + "(" * 200): "the limit is 100|nest",
        ("gbnf", 'root ::= "a" root'): "line 1: no text of 'root' ever ends",
        ("regex", "(a|b"): "line 1, column 1: unclosed group",
    }
    for (kind, text), sentence in cases.items():
        with pytest.raises(DerbyError, match=sentence):
            vetting.vet(GrammarSource(kind, text, "test"), BYTES)  # type: ignore[arg-type]


def test_a_verdict_is_remembered() -> None:
    """Twelve columns with one endless grammar took twelve deadlines."""
    sandbox = Counted(deadline=0.3)
    vetting = Vetting(sandbox)
    wrong = GrammarSource("lark", 'start: "b" nothing', "wrong")
    for source, why in ((wrong, "unknown name"), (ENDLESS, r"longer than 0\.3 s")):
        for _ in range(3):
            with pytest.raises(DerbyError, match=why):
                vetting.vet(source, BYTES)
    assert len(sandbox.asked) == 2
    sandbox.close()
    sandbox = Counted()
    vetting = Vetting(sandbox)
    for _ in range(3):
        vetting.vet(GrammarSource("lark", 'start: "bb"', "good"), BYTES)
    assert len(sandbox.asked) == 1
    for number in range(MAX_VERDICTS):
        vetting.vet(GrammarSource("lark", f'start: "{number}"', "other"), BYTES)
    vetting.vet(GrammarSource("lark", 'start: "bb"', "good"), BYTES)
    assert len(sandbox.asked) == MAX_VERDICTS + 2, "the oldest is forgotten first"
    sandbox.close()


def test_a_sandbox_that_did_not_start_condemns_no_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence "did not start" was remembered as if the grammar were to blame: once was enough
    for it to be refused until 64 others had been vetted.
    """
    sandbox, source = Sandbox(), GrammarSource("lark", 'start: "b" "c"', "good")
    vetting = Vetting(sandbox)
    with monkeypatch.context() as patched:
        patched.setattr("sys.executable", "/bin/false")
        with pytest.raises(DerbyError, match="did not start"):
            vetting.vet(source, BYTES)
    vetting.vet(source, BYTES)
    sandbox.close()


def test_a_wait_that_was_the_machine_s_condemns_no_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline was of clock time, so that on a busy machine good grammars missed it, and were
    refused from then on. A child that is never given the processor stands for such a machine.
    """
    sandbox, source = Sandbox(), GrammarSource("lark", 'start: "b" "d"', "good")
    vetting = Vetting(sandbox)
    sandbox.check(ONE_LETTER, BYTES)
    os.kill(sandbox.pid, signal.SIGSTOP)
    monkeypatch.setattr(parent, "LOADING", -4.9)
    with pytest.raises(DerbyError, match=r"no answer within 0\.1 s: the machine is busy"):
        vetting.vet(source, BYTES)
    monkeypatch.undo()
    vetting.vet(source, BYTES)
    sandbox.close()


def test_what_is_remembered_keeps_no_tokenizer_alive() -> None:
    """The memory of verdicts held on to the tokenizers of 64 of them, hundreds of megabytes long
    after their models were dropped.
    """
    sandbox = Sandbox()
    vetting, vocabularies, tokenizer = Vetting(sandbox), Vocabularies(), ByteTokenizer()
    vetting.vet(GrammarSource("lark", 'start: "b"', "good"), tokenizer)
    vocabularies.get(tokenizer)
    alive = weakref.ref(tokenizer)
    del tokenizer
    gc.collect()
    assert alive() is None
    sandbox.close()


def test_a_sandbox_s_child_ends_with_it() -> None:
    sandbox = Sandbox()
    sandbox.check(ONE_LETTER, BYTES)
    child = os.pidfd_open(sandbox.pid)
    del sandbox
    gc.collect()
    assert select.select([child], [], [], 30)[0]
    os.close(child)


def test_the_editor_answers_whatever_it_is_sent() -> None:
    editor = Editor(lambda: BYTES)
    assert editor.look("regex", "a+b", "aa") == (
        SOUND,
        "The whole text fits, and it may not end here. Next could be 'a', 'b'.",
    )
    assert editor.look("regex", "a+b", None)[1].startswith("Nothing is written yet")
    for kind, text in (("exe", "a"), (None, None), ("lark", ""), ("lark", {"a": 1}), ([], "a")):
        sound, fits = editor.look(kind, text, "x")
        assert sound.startswith("The grammar")
        assert fits == ""
