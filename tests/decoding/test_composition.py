"""Grammars in the loop: any drafter writes what the plain loop writes under the same grammar, in
slots and from an earlier cache, too. Forced tokens are no drafts, guesses go on behind them, masks
are computed while the pass runs, and a text that is cut says what was missing.
"""

import re
import threading
from collections.abc import Sequence

import pytest
from grammar_texts import compile_grammar
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_runs import run

from backend.decoding.seams import NOTHING, Drafter, Masks
from backend.engines.fake import FakeEngine, FakeSession
from backend.events import Event, Step
from backend.grammar.constraint import GrammarConstraint
from backend.grammar.sources import GrammarSource, shipped
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.results.texts import texts_of
from backend.strategies.column import default_column, parse_column
from backend.strategies.registry import strategies
from backend.types import Logits, ModelSpec, Proposal, Request, Sampling

#: Whatever drafts, of other packages too.
DRAFTED = (
    *(
        name
        for name, strategy in strategies().items()
        if strategy.ours and strategy.guesses and default_column(name).lossless(1.0)
    ),
    "lookup:k=3,ngram=1",
    "lookahead:window=3,level=2",
)
#: Loops, choices, forced runs and free text, all quickly written by a model that knows nothing.
LOOPS = 'start: item+\nitem: "<li>" /[a-z ]{1,9}/ "</li>" | "<hr width=\'100\'/>"'
#: Ends within a block: the end of text behind it is one that single steps never write.
ENDS = 'start: "ab" /[ab]b/'
ENGINES = LoadedModels()


def written(grammar: str, target: ModelSpec, request: Request, names: Sequence[str]) -> Scoreboard:
    """A finished race of the plain grammar column and `names` under the same grammar."""
    source = shipped().get(grammar) or GrammarSource("lark", grammar, "test")
    columns = [parse_column(n).with_settings({"grammar": source}) for n in ("grammar", *names)]
    board = Scoreboard(columns)
    Race(request, tuple(columns), target).run(ENGINES, board.add, lambda: False)
    assert [score.message for score in board.scores] == [""] * len(columns)
    return board


@settings(max_examples=30, deadline=None)
@given(
    grammar=st.sampled_from(
        [LOOPS, ENDS, "person", "json", "arithmetic", "yes_no", "function_call"]
    ),
    model=st.sampled_from(["fake", "fake-loop"]),
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    seed=st.integers(0, 2**40),
)
def test_every_drafter_keeps_the_text_of_its_grammar(
    grammar: str, model: str, temperature: float, seed: int
) -> None:
    prompt, sampling = "abab abab <li>one</li><li>two</li> Say", Sampling(temperature, seed=seed)
    request = Request(prompt, 48, sampling, chat=False)
    board = written(grammar, ModelSpec(model, "fake"), request, DRAFTED)
    plain = board.scores[0]
    for index, score in enumerate(board.scores[1:], 1):
        assert score.tokens == plain.tokens, board.name(index)
        assert (score.reason, score.expected) == (plain.reason, plain.expected)
        assert texts_of(board)[index].like == 0


def test_slots_have_grammars_of_their_own_under_any_drafter() -> None:
    program = 'A {{gen "n" regex="[0-9]{2,4}" max_tokens=6}} B {{select "s" "red|green"}} {{n}}'
    columns = tuple(parse_column(name) for name in ("kv", *DRAFTED))
    board = Scoreboard(columns)
    race = Race(Request(program, 40), columns, ModelSpec("fake-loop", "fake"))
    race.run(ENGINES, board.add, lambda: False)
    values = board.scores[0].values
    assert re.fullmatch("[0-9]{2,4}", str(values["n"]))
    assert values["s"] in ("red", "green")
    assert [score.values for score in board.scores] == [values] * len(columns)
    assert all(score.masked for score in board.scores)


class Meeting(FakeSession):
    """A forward pass that ends only when the step's masks are there."""

    masked = threading.Event()

    def forward(self, tokens: Sequence[int], parents: Sequence[int], rows: Sequence[int]) -> Logits:
        logits = super().forward(tokens, parents, rows)
        if rows:
            assert self.masked.wait(30), "the masks wait for the pass"
            self.masked.clear()
        return logits


def test_masks_are_computed_while_the_pass_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were they begun after the pass, it would wait for them in vain."""
    compute, rows = GrammarConstraint.masks_along, list[int]()

    def tell(self: GrammarConstraint, proposal: Proposal) -> Masks:
        masks = compute(self, proposal)
        rows.append(len(masks))
        Meeting.masked.set()
        return masks

    monkeypatch.setattr(GrammarConstraint, "masks_along", tell)
    engine = FakeEngine()
    constraint = compile_grammar(GrammarSource("lark", LOOPS, "test"), engine.tokenizer)
    Meeting.masked.clear()
    rows.clear()
    request, session = Request("Say", 20, chat=False), Meeting(engine)
    score = run(engine, request, prompt=b"Say", session=session, constraint=constraint).score
    assert len(score.tokens) == 20
    # One mask for each sampled row: the root, and each forced token.
    assert sum(rows) == score.steps + score.forced


@pytest.mark.parametrize("name", ["grammar", *DRAFTED])
def test_forced_tokens_are_no_drafts(name: str) -> None:
    """They come first in a step, and a draft goes on behind them."""
    grammar, events = GrammarSource("lark", LOOPS, "test"), list[Event]()
    column = parse_column(name).with_settings({"grammar": grammar})
    request = Request("<li>one</li><li>two</li> Say", 48, chat=False)
    Race(request, (column,), ModelSpec("fake", "fake")).run(ENGINES, events.append, lambda: False)
    steps = [event for event in events if isinstance(event, Step)]
    for step in steps:
        forced, accepted = step.origins.count("forced"), step.accepted
        proposed = ["forced"] * forced + ["drafted"] * accepted
        assert step.origins[: forced + accepted] == proposed
        assert "drafted" not in step.origins[forced + accepted :]
        assert accepted <= step.drafted <= step.rows - 1 - forced
    assert any("forced" in step.origins for step in steps)
    if name == "grammar":
        assert not any(step.drafted for step in steps)
    if name == "lookup":
        assert any("forced" in step.origins and step.accepted for step in steps)


class Mirror(Drafter):
    """Proposes nothing, and has the text as its calls tell of it."""

    def __init__(self) -> None:
        self.text: list[int] = []

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        self.text += context[len(self.text) :]
        assert self.text == list(context)
        return NOTHING

    def rewind(self, length: int) -> None:
        del self.text[length:]


def test_forced_tokens_that_are_never_written_are_taken_back() -> None:
    """A drafter has seen them already, and a program may go on otherwise."""
    engine, mirror = FakeEngine(), Mirror()
    source = GrammarSource("lark", 'start: /[a-z]/ "abcdef"', "test")
    request = Request("Say", 20, chat=False, stop=("bc",))
    constraint = compile_grammar(source, engine.tokenizer)
    column = run(engine, request, mirror, b"Say", constraint=constraint)
    assert bytes(column.tokens[1:]) == b"abc"
    assert mirror.text == [*b"Say", *column.tokens]


def test_a_text_that_is_cut_says_what_the_grammar_still_wanted() -> None:
    def cut(source: str, tokens: int) -> tuple[str, str]:
        engine = FakeEngine()
        constraint = compile_grammar(GrammarSource("lark", source, "test"), engine.tokenizer)
        request = Request("Say", tokens, chat=False)
        score = run(engine, request, prompt=b"Say", constraint=constraint).score
        return score.reason, score.expected

    assert cut('start: "abcdef"', 4) == ("token limit", "'ef'")
    assert cut('start: "abc" /[xyz]/ "."', 3) == ("token limit", "more text")
    assert cut('start: "abc" "def"?', 3) == ("token limit", "")
    assert cut('start: "abc"', 8) == ("end of text", "")
