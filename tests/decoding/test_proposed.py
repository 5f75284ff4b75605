"""What is told of a step is what its pass was given and what came of it; nothing else reads it."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lib import PROMPT, Script, compile_grammar, drafters, drafting, naive, run

from backend.decoding.clock import Clock
from backend.decoding.proposed import Verified, proposed
from backend.decoding.sampling import Choice, Sampler
from backend.decoding.verification import DistributionVerifier, Verdict
from backend.drafters.draft_length import DraftLength
from backend.engines.fake import FakeEngine
from backend.events import Event, Proposed, Step, from_json, to_json
from backend.grammar.sources import GrammarSource, shipped
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.figures import FIGURES
from backend.results.result import result_of
from backend.results.score import Score
from backend.results.scoreboard import Scoreboard
from backend.results.sentences import headline
from backend.strategies.column import parse_column
from backend.text import ByteTokenizer
from backend.types import ModelSpec, Proposal, Request, Sampling

ENGINE = FakeEngine(period=2, sharpness=4.0)
PIECE = ENGINE.tokenizer.piece

#: Who proposes what in the drafters of the tests, by a word of their names.
OF = {
    "none": set[str](),
    "hybrid": {"prompt lookup", "draft model", "prompt lookup and draft model"},
    "lookup": {"prompt lookup"},
    "draft": {"draft model"},
    "lookahead": {"n-gram pool"},
}

LOOPS = GrammarSource("lark", 'start: item+\nitem: "<li>" /[a-z ]{1,9}/ "</li>" | "<hr/>"', "test")


def pairs(events: Sequence[Event]) -> Iterator[tuple[Step, Proposed]]:
    """Each step with what was told of it, in order and without exception."""
    steps = [event for event in events if isinstance(event, Step)]
    told = [event for event in events if isinstance(event, Proposed)]
    for column in {step.column for step in steps}:
        ours = [event for event in steps if event.column == column]
        yield from zip(ours, [each for each in told if each.column == column], strict=True)


def proposers(seen: Proposed) -> list[str]:
    return [name for name, count in seen.by for _ in range(count)]


def check(step: Step, seen: Proposed, piece: Callable[[int], str]) -> None:
    """The path is the step's proposed tokens, from the text so far downwards."""
    texts = [piece(token) for token in step.tokens]
    assert seen.committed == texts
    own = [origin in ("forced", "drafted") for origin in step.origins]
    assert [seen.tokens[i] for i in seen.path] == [
        text for text, proposed in zip(texts, own, strict=True) if proposed
    ]
    verified = len(seen.tokens) - seen.cut
    parents = seen.parents or list(range(-1, verified - 1))
    assert len(parents) == verified
    assert [parents[i] for i in seen.path] == [-1, *seen.path][: len(seen.path)]
    assert len(proposers(seen)) == len(seen.tokens)
    forced = proposers(seen)[:verified].count("grammar")
    assert proposers(seen)[:forced] == ["grammar"] * forced
    assert verified - forced == step.drafted
    assert step.origins.count("forced") == min(forced, len(step.origins))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_accepted_path_is_what_the_step_drafted(temperature: float) -> None:
    sampling = Sampling(temperature, seed=2)
    request = Request("x", max_new_tokens=60, sampling=sampling)
    everyone: set[str] = set()
    for name, make in drafters(ENGINE, sampling).items():
        found = run(ENGINE, request, make())
        told = list(pairs(found.events))
        assert len(told) == len(found.steps)
        for step, seen in told:
            check(step, seen, PIECE)
            shown = "".join(text for _, text in step.spans)
            assert "".join(seen.committed).removesuffix("<eos>") == shown, name
            window = sum(map(len, seen.window))
            assert step.rows >= 1 + len(seen.tokens) + window
        by = {who for _, seen in told for who in proposers(seen)}
        assert by <= OF[next(kind for kind in OF if kind in name)], name
        everyone |= by
    assert everyone >= {"prompt lookup", "draft model", "n-gram pool"}


@given(
    grammar=st.sampled_from(["loops", "person", "json", "yes_no"]),
    column=st.sampled_from(["grammar", "lookup:k=4", "lookahead", "speculative:k=4"]),
    temperature=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 99),
)
@settings(max_examples=20, deadline=None)
def test_a_grammar_forces_first_and_every_mask_is_counted(
    grammar: str, column: str, temperature: float, seed: int
) -> None:
    """Counted anew by a constraint that walks the text beside it."""
    source = {**shipped(), "loops": LOOPS}[grammar]
    columns = (parse_column(column).with_settings({"grammar": source}),)
    request = Request("<li>one</li> Say", 40, Sampling(temperature, seed=seed), chat=False)
    events: list[Event] = []
    race = Race(request, columns, ModelSpec("fake-loop", "fake"))
    race.run(ENGINES, events.append, lambda: False)
    text: list[int] = []
    forced = 0
    for step, seen in pairs(events):
        check(step, seen, PIECE)
        forced += "grammar" in proposers(seen)
        verified = [token_of(piece) for piece in seen.tokens[: len(seen.tokens) - seen.cut]]
        parents = tuple(seen.parents or range(-1, len(verified) - 1))
        walk = compile_grammar(source, ENGINE.tokenizer)
        walk.advance(text)
        masks = walk.masks_along(Proposal(tuple(verified), parents)).allowed
        assert seen.allowed == masks.sum(axis=1).tolist()
        assert len(seen.allowed) == len(step.masks)
        text += step.tokens
    assert forced or grammar in ("json", "yes_no")


ENGINES = LoadedModels()


def token_of(piece: str) -> int:
    return ByteTokenizer.EOS if piece == "<eos>" else ord(piece)


def test_a_branch_that_a_grammar_rules_out_keeps_its_proposer() -> None:
    constraint = compile_grammar(LOOPS, ENGINE.tokenizer)
    names = ("one", "two", "three", "four", "five")
    offered = Proposal(tuple(b"x<yhl"), (-1, -1, 0, 1, 1), by=names)
    kept = constraint.cut(offered)
    logits = np.zeros((4, 257), dtype=np.float32)
    allowed = constraint.masks_along(kept).allowed
    verdict = Verdict((0, 2), tuple(Choice(token, 1.0) for token in b"<li"))
    done = Verified(offered, kept, logits, allowed, verdict, tuple(b"<li"))
    seen = proposed(0, done, Request("x"), PIECE)
    assert (seen.tokens, seen.cut, seen.parents) == (list("<hlxy"), 2, [-1, 0, 0])
    assert proposers(seen) == ["two", "four", "five", "one", "three"]
    assert (seen.path, seen.chosen, seen.allowed) == ([0, 2], "i", [1, 2, 1, 1])


@pytest.mark.parametrize("length", range(1, 7))
def test_what_is_accepted_behind_the_end_is_not_committed(length: int) -> None:
    """A stop string inside an accepted block: the tokens behind it were never part of the text."""
    plain = Request("x", max_new_tokens=40)
    text = run(ENGINE, plain).score.text
    truth = naive(ENGINE, PROMPT, plain)
    request = replace(plain, stop=(text[length : length + 2],))
    found = run(ENGINE, request, Script(truth, len(PROMPT), k=8, wrong=99))
    told = list(pairs(found.events))
    for step, seen in told:
        check(step, seen, PIECE)
    ended = told[-1][1]
    assert (len(ended.tokens), ended.path, ended.chosen) == (8, list(range(length + 1)), "")


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
@pytest.mark.parametrize("promise", ["text", "distribution"])
def test_the_most_probable_tokens_are_the_targets(temperature: float, promise: str) -> None:
    sampling = Sampling(temperature, top_k=20, seed=4)
    request = Request("x", max_new_tokens=40, sampling=sampling, top=5)
    draft = drafting(replace(ENGINE, salt=3), DraftLength(3), Sampler(sampling))
    rule = {"verifier": DistributionVerifier()} if promise == "distribution" else {}
    found = run(ENGINE, request, draft, **rule)
    text = list(PROMPT)
    for step, seen in pairs(found.events):
        assert len(seen.top) == len(step.tokens)
        for token, best in zip(step.tokens, seen.top, strict=True):
            scores = ENGINE.logits(text).astype(np.float64) / (temperature or 1.0)
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            expected = np.sort(weights)[::-1][:5]
            shares = [share for _, share in best]
            assert shares[:5] == pytest.approx(expected, rel=6e-3)
            assert shares == sorted(shares, reverse=True)
            assert PIECE(token) in [piece for piece, _ in best]
            assert len(best) == 5 + (weights[token] < expected[-1] * 0.999)
            if not temperature:
                assert best[0][0] == PIECE(token)
            text.append(token)


@dataclass
class Strict(ByteTokenizer):
    """Refuses to tell a token's text while a clock runs."""

    clock: Clock

    def __post_init__(self) -> None:
        super().__init__()

    def piece(self, token: int) -> str:
        assert not self.clock.running
        return super().piece(token)


def test_telling_is_on_nobodys_clock() -> None:
    clock = Clock()
    request = Request("x", max_new_tokens=20, top=2)
    for make in drafters(ENGINE, request.sampling).values():
        assert run(ENGINE, request, make(), clock=clock, tokenizer=Strict(clock)).steps


@pytest.mark.parametrize(
    "prompt", ["Tell me", 'A {{gen "a" max_tokens=9}} b {{select "c" "x|y"}}.']
)
def test_without_it_no_figure_changes(prompt: str) -> None:
    """Every figure and sentence of a board that never saw one, and JSON in between."""
    names = ("kv", "lookup", "lookahead", "speculative:k=3", "kv:grammar=person")
    columns = tuple(map(parse_column, names))
    events: list[Event] = []
    race = Race(Request(prompt, 40, top=2), columns, ModelSpec("fake-loop", "fake"))
    race.run(ENGINES, events.append, lambda: False)
    whole, without = Scoreboard(columns), Scoreboard(columns)
    for event in events:
        read = from_json(json.loads(json.dumps(to_json(event), allow_nan=False)))
        assert read == event
        whole.add(read)
        if not isinstance(event, Proposed):
            without.add(event)
    assert sum(isinstance(event, Proposed) for event in events) > 20
    for ours, theirs in zip(whole.scores, without.scores, strict=True):
        for each in fields(Score):
            if each.name != "proposed_at":
                assert getattr(ours, each.name) == getattr(theirs, each.name), each.name
    both = [result_of(board) for board in (whole, without)]
    for one, other in zip(*(result.rows for result in both), strict=True):
        assert [f.cell(one) for f in FIGURES] == [f.cell(other) for f in FIGURES]
    assert headline(whole, both[0]) == headline(without, both[1])


@pytest.mark.thorough
@pytest.mark.model
def test_on_the_built_in_model_texts_are_those_of_the_columns() -> None:
    names = ("kv", "speculative", "lookahead", "lookup:grammar=person")
    columns = tuple(map(parse_column, names))
    board, events = Scoreboard(columns), list[Event]()
    models = LoadedModels()
    Race(Request("List three rivers of Europe.", 32, top=5), columns).run(
        models, lambda event: (events.append(event), board.add(event))[0], lambda: False
    )
    piece = models.get(ModelSpec(), print).tokenizer.piece
    for step, seen in pairs(events):
        check(step, seen, piece)
        assert [best[0][0] for best in seen.top] == seen.committed
        shown = "".join(text for _, text in step.spans)
        assert "".join(seen.committed).removesuffix("<|im_end|>") == shown
    by = {who for _, seen in pairs(events) for who in proposers(seen)}
    assert {"trained draft", "n-gram pool", "grammar"} <= by
