"""A reasoning model thinks as its template has it, and a grammar begins behind its thinking."""

import json
from pathlib import Path

import pytest
from chat_model import CHATML
from chat_model import tokenizer as chat_tokenizer

from backend.engines.fake import FakeEngine
from backend.errors import DerbyError
from backend.grammar.constraint import closing_tag
from backend.grammar.sources import GrammarSource
from backend.racing import column
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import parse_column
from backend.text import HfTokenizer
from backend.types import ModelSpec, Request, Sampling

ANSWER = GrammarSource(
    "json_schema",
    json.dumps({"type": "array", "items": {"enum": ["yes", "no"]}, "minItems": 2, "maxItems": 4}),
    "answer",
)
ENGINE = FakeEngine()
PIECE = ENGINE.tokenizer.piece


def closed(pieces: list[str], closing: str) -> int:
    """Tokens up to the one with which the tag is complete."""
    return next(n for n in range(1, 1 + len(pieces)) if closing in "".join(pieces[:n]))


@pytest.mark.parametrize(("temperature", "at", "length"), [(0.0, 5, 2), (0.9, 0, 1), (0.9, 9, 3)])
def test_columns_with_a_grammar_agree_behind_thinking_and_only_the_answer_is_judged(
    monkeypatch: pytest.MonkeyPatch, temperature: float, at: int, length: int
) -> None:
    """A tag of one or several tokens, taken from what the model writes by itself."""

    def raced(closing: str, *names: str) -> Scoreboard:
        monkeypatch.setattr(column, "closing_tag", lambda *_: closing)
        columns = tuple(
            parse_column(name).with_settings({} if name == "kv" else {"grammar": ANSWER})
            for name in names
        )
        board = Scoreboard(columns)
        request = Request("Who?", 200, Sampling(temperature, seed=4), chat=False)
        Race(request, columns, ModelSpec("fake", "fake")).run(
            LoadedModels(), board.add, lambda: False
        )
        return board

    free = raced("", "kv").scores[0].tokens
    closing = "".join(map(PIECE, free[at : at + length]))
    board = raced(closing, "kv", "grammar", "lookup", "speculative", "lookahead")
    grammar, *others = board.scores[1:]
    end = closed(list(map(PIECE, free)), closing)
    assert grammar.tokens[:end] == free[:end]
    assert grammar.reason == "end of text"
    assert json.loads(bytes(t for t in grammar.tokens[end:] if t < 256))
    for score in others:
        assert score.tokens == grammar.tokens
    assert {score.judged and score.judged.verdict for score in board.scores[1:]} == {"valid"}
    unclosed = raced("</never>", "grammar").scores[0]
    assert unclosed.expected == "'</never>'"


OPENS = (
    "<|im_start|>assistant\n"
    "{% if not SWITCH %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
)


@pytest.mark.parametrize(
    ("usual", "switch", "before"),
    [
        (
            "on",
            "enable_thinking",
            "{% if enable_thinking is not defined %}{% set enable_thinking = true %}{% endif %}",
        ),
        ("off", "thinking", ""),
    ],
)
def test_a_template_that_knows_thinking_switches_it(
    tmp_path: Path, usual: str, switch: str, before: str
) -> None:
    made = chat_tokenizer()
    made.chat_template = f"{before}{CHATML}{OPENS.replace('SWITCH', switch)}"
    made.save_pretrained(tmp_path)
    tokenizer = HfTokenizer(tmp_path, frozenset(), 300)
    off, on, plain = (tokenizer.encode("Hi", chat=True, thinking=t) for t in ("off", "on", ""))
    assert plain == {"on": on, "off": off}[usual]
    assert [closing_tag(prompt, tokenizer.piece) for prompt in (off, on)] == ["", "</think>"]


def test_a_template_that_does_not_know_thinking_says_so(tmp_path: Path) -> None:
    chat_tokenizer().save_pretrained(tmp_path)
    tokenizer = HfTokenizer(tmp_path, frozenset(), 300)
    with pytest.raises(DerbyError, match="no thinking to switch"):
        tokenizer.encode("Hi", chat=True, thinking="off")
    with pytest.raises(DerbyError, match="need the chat template"):
        Request("Hi", chat=False, thinking="on")


@pytest.mark.parametrize(
    ("prompt", "closing"),
    [
        ("a <think>\n", "</think>"),
        ("<seed:think>", "</seed:think>"),
        ("[THINK]", "[/THINK]"),
        ("<thinking> ", "</thinking>"),
        ("<think>\n\n</think>\n\n", ""),
        ("<think> a", ""),
        ("I think>", ""),
        ("", ""),
    ],
)
def test_an_opened_tag_is_seen(prompt: str, closing: str) -> None:
    assert closing_tag(list(prompt.encode()), PIECE) == closing
