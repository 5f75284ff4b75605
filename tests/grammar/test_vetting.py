"""Strangers' grammars are refused with the best sentence, once, and what ships passes as theirs."""

from dataclasses import replace

import pytest

from backend.errors import DerbyError
from backend.grammar.sandbox import vetting
from backend.grammar.sandbox.vetting import explore, vet
from backend.grammar.sources import GrammarSource, examples, shipped
from backend.text import ByteTokenizer
from backend.web.editor import SOUND, Editor

BYTES = ByteTokenizer()


@pytest.mark.parametrize("name", shipped())
def test_what_ships_would_pass_as_a_strangers(name: str) -> None:
    """Visitors start from these: a copy of one, under another name, must be let through."""
    source = replace(shipped()[name], name="copy")
    vet(source, BYTES)
    text = examples(name).accept[-1]
    found = explore(source, BYTES, text)
    assert (found.accepted, found.accepting) == (len(text), True)


def test_the_sentence_is_the_one_that_helps() -> None:
    cases = {
        ("lark", 'start: "a" b\nb: "x" b'): "line 2, column 1: no text of 'b' ever ends",
        ("lark", 'start: "a" b'): 'line 1, column 12: unknown name: "b"',
        ("lark", "start: " + "(" * 200): "the limit is 100|nest",
        ("gbnf", 'root ::= "a" root'): "line 1: no text of 'root' ever ends",
        ("regex", "(a|b"): "line 1, column 1: unclosed group",
    }
    for (kind, text), sentence in cases.items():
        with pytest.raises(DerbyError, match=sentence):
            vet(GrammarSource(kind, text, "test"), BYTES)  # type: ignore[arg-type]


def test_a_refusal_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve columns with one endless grammar took twelve deadlines."""
    asked: list[str] = []
    check = vetting.SANDBOX.check

    def counted(definition: str, tokenizer: ByteTokenizer) -> str:
        asked.append(definition)
        return check(definition, tokenizer)

    monkeypatch.setattr(vetting.SANDBOX, "check", counted)
    for text, refused in (('start: "b" nothing', True), ('start: "bb"', False)):
        source = GrammarSource("lark", text, "counted")
        for _ in range(3):
            if refused:
                with pytest.raises(DerbyError, match="unknown name"):
                    vet(source, BYTES)
            else:
                vet(source, BYTES)
    assert len(asked) == 2


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
