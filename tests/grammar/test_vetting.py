"""Untrusted grammars are refused with the best sentence, once, and what ships passes as one."""

import gc
import os
import select
import signal
import sys
import weakref
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from backend.errors import DerbyError
from backend.grammar import definition
from backend.grammar.grammars import MAX_VERDICTS, GrammarCompiler, Grammars, Vetting
from backend.grammar.lark import productive, rules
from backend.grammar.matchers import compile_matcher
from backend.grammar.sandbox import parent
from backend.grammar.sandbox.parent import Sandbox, StoppedError
from backend.grammar.sources import (
    GrammarSource,
    Kind,
    examples,
    grammar_from_file,
    shipped,
)
from backend.grammar.vocabulary import Vocabularies
from backend.text import ByteTokenizer

BYTES = ByteTokenizer()
ONE_LETTER = GrammarSource("lark", 'start: "a"', "one letter")
ENDLESS = GrammarSource("lark", "start: /a+/ /a+/", "endless")


@pytest.fixture(scope="module")
def vetting(sandbox: Sandbox) -> Vetting:
    return Vetting(sandbox)


@pytest.mark.parametrize("name", shipped())
def test_what_ships_would_pass_untrusted(vetting: Vetting, name: str) -> None:
    """Visitors start from these: a copy of one, under another name, must be let through."""
    source = replace(shipped()[name], name="copy")
    vetting.vet(source, BYTES)
    text = examples(name).accept[-1]
    found = vetting._sandbox.explore(source, BYTES, text)
    assert (found.accepted, found.accepting) == (len(text), True)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("lark", 'start: "a"'),
        ("gbnf", 'root ::= "a"'),
        ("regex", "a"),
        ("json_schema", '{"const": 1}'),
    ],
)
def test_a_byte_order_mark_is_no_part_of_a_grammar(
    vetting: Vetting, kind: Kind, text: str, tmp_path: Path
) -> None:
    """Editors of Windows write one. It was refused as a quote left open, and a regular expression
    had to match it.
    """
    suffix = {"json_schema": "schema.json"}.get(kind, kind)
    path = tmp_path / f"marked.{suffix}"
    path.write_text(text, encoding="utf-8-sig")
    for source in (GrammarSource(kind, f"\ufeff{text}", "marked"), grammar_from_file(path)):
        assert source.text == text
        vetting.vet(source, BYTES)


def test_the_sentence_is_the_one_that_helps(vetting: Vetting) -> None:
    cases = {
        ("lark", 'start: "a" b\nb: "x" b'): "line 2, column 1: no text of 'b' ever ends",
        ("lark", 'start: "a" b'): 'line 1, column 12: unknown name: "b"',
        ("lark", "start: " + "(" * 200): "nested",
        ("gbnf", 'root ::= "a" root'): "line 1: no text of 'root' ever ends",
        ("regex", "(a|b"): "line 1, column 1: unclosed group",
    }
    for (kind, text), sentence in cases.items():
        with pytest.raises(DerbyError, match=sentence):
            vetting.vet(GrammarSource(kind, text, "test"), BYTES)  # type: ignore[arg-type]


def test_a_verdict_is_remembered() -> None:
    """Twelve columns with one endless grammar took twelve deadlines."""
    with closing(Sandbox(deadline=0.3)) as sandbox:
        vetting = Vetting(sandbox)
        wrong = GrammarSource("lark", 'start: "b" nothing', "wrong")
        with patch.object(sandbox, "examine", wraps=sandbox.examine) as asked:
            for source, why in ((wrong, "unknown name"), (ENDLESS, r"longer than 0\.3 s")):
                for _ in range(3):
                    with pytest.raises(DerbyError, match=why):
                        vetting.vet(source, BYTES)
        assert asked.call_count == 2
        with patch.object(sandbox, "examine", return_value="{}") as asked:
            good = [GrammarSource("lark", f'start: "{n}"', "good") for n in range(MAX_VERDICTS)]
            for source in (*good, *good):
                vetting.vet(source, BYTES)
            assert asked.call_count == MAX_VERDICTS
            vetting.vet(wrong, BYTES)
            assert asked.call_count == MAX_VERDICTS + 1, "the oldest is forgotten first"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("lark", "%import .json.value\nstart: value"),
        ("gbnf", 'root ::= "a"+'),
        ("regex", "a+"),
        ("json_schema", '{"type": "object", "required": ["a"]}'),
        ("lark", "start: nothing"),
    ],
)
def test_this_process_reads_no_untrusted_text(
    kind: Kind, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linking, GBNF and the search for endless rules ran outside of the sandbox, without a
    deadline, and again when the grammar was compiled: one text stopped the page for all visitors.
    """

    def never(*_: object) -> None:
        raise AssertionError("it reads the text")

    for name in ("link", "gbnf_to_lark", "regex_literal"):
        monkeypatch.setattr(definition, name, never)
    for read in (productive.require_productive, rules.read_rules):
        monkeypatch.setattr(sys.modules[read.__module__], read.__name__, never)
    grammars = Grammars()
    compiler = GrammarCompiler(grammars, BYTES)
    source = GrammarSource(kind, text, "mine")
    with suppress(DerbyError):
        compiler.prepare(source)
        constraint = compiler.compile(source)
        assert not constraint.finished()
    assert ("nothing" in text) == (source not in compiler._definitions)


def test_a_sandbox_that_did_not_start_condemns_no_grammar(
    fresh: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence "did not start" was remembered as if the grammar were to blame: once was enough
    for it to be refused until 64 others had been vetted.
    """
    source = GrammarSource("lark", 'start: "b" "c"', "good")
    vetting = Vetting(fresh)
    with monkeypatch.context() as patched:
        patched.setattr("sys.executable", "/bin/false")
        with pytest.raises(DerbyError, match=r"did not start.*code 1"):
            vetting.vet(source, BYTES)
    vetting.vet(source, BYTES)


def test_a_wait_that_was_the_machine_s_condemns_no_grammar(
    fresh: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline was of clock time, so that on a busy machine good grammars missed it, and were
    refused from then on. A child that is never given the processor stands for such a machine.
    """
    source = GrammarSource("lark", 'start: "b" "d"', "good")
    vetting = Vetting(fresh)
    fresh.examine(ONE_LETTER, BYTES)
    os.kill(fresh.pid, signal.SIGSTOP)
    monkeypatch.setattr(parent, "LOADING", -4.9)
    with pytest.raises(DerbyError, match=r"no answer within 0\.1 s: the machine is busy"):
        vetting.vet(source, BYTES)
    monkeypatch.undo()
    vetting.vet(source, BYTES)


def test_vetting_that_is_stopped_condemns_no_grammar(fresh: Sandbox) -> None:
    """The child is ended, and the same grammar is examined anew by the next one."""
    source = GrammarSource("lark", 'start: "b" "e"', "good")
    vetting = Vetting(fresh)
    fresh.examine(ONE_LETTER, BYTES)
    os.kill(fresh.pid, signal.SIGSTOP)  # it answers nothing
    looks = iter([False, True])
    with pytest.raises(StoppedError):
        vetting.vet(source, BYTES, lambda: next(looks))
    assert fresh.pid == 0
    vetting.vet(source, BYTES)


def test_what_is_remembered_keeps_no_tokenizer_alive(fresh: Sandbox) -> None:
    """The memory of verdicts held on to the tokenizers of 64 of them, hundreds of megabytes long
    after their models were dropped.
    """
    vetting, vocabularies, tokenizer = Vetting(fresh), Vocabularies(), ByteTokenizer()
    vetting.vet(GrammarSource("lark", 'start: "b"', "good"), tokenizer)
    vocabularies.get(tokenizer)
    alive = weakref.ref(tokenizer)
    del tokenizer
    gc.collect()
    assert alive() is None


def test_a_sandbox_s_child_ends_with_it() -> None:
    sandbox = Sandbox()
    sandbox.examine(ONE_LETTER, BYTES)
    child = os.pidfd_open(sandbox.pid)
    del sandbox
    gc.collect()
    assert select.select([child], [], [], 30)[0]
    os.close(child)


def test_a_column_compiles_once_what_its_slots_share_and_each_starts_at_the_beginning() -> None:
    compiler = GrammarCompiler(Grammars(), BYTES)
    compiler.prepare(shipped()["yes_no"])
    with patch("backend.grammar.grammars.compile_matcher", wraps=compile_matcher) as compiled:
        first, second = (compiler.compile(shipped()["yes_no"]) for _ in range(2))
        start = first.expected()
        first.advance(list(b"Yes"))
        third = compiler.compile(shipped()["yes_no"])
        assert first.expected() != start == second.expected() == third.expected()
        assert compiled.call_count == 1
