"""What a `Proposed` event says is what the step's pass was given and what came of it: the accepted
path, who proposed, what a grammar cut and allowed, the most probable tokens; off every clock.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from grammar_texts import compile_grammar
from loop_runs import PROMPT, Script, drafters, drafting, naive, run

from backend.decoding.clock import Clock
from backend.decoding.proposed import proposed
from backend.decoding.sampling import Sampler
from backend.decoding.verification import DistributionVerifier
from backend.drafters.draft_length import DraftLength
from backend.engines.fake import FakeEngine
from backend.events import Event, Proposed, Step
from backend.grammar.sources import GrammarSource, shipped
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.strategies.column import parse_column
from backend.tokenizer import ByteTokenizer
from backend.types import ModelSpec, Outcome, Proposal, Request, Sampling

ENGINE = FakeEngine(period=2, sharpness=4.0)
PIECE = ENGINE.tokenizer.piece

LOOPS = GrammarSource("lark", 'start: item+\nitem: "<li>" /[a-z ]{1,9}/ "</li>" | "<hr/>"', "test")


def pairs(events: Sequence[Event]) -> Iterator[tuple[Step, Proposed]]:
    """Each step of one column with its Proposed, in order and without exception."""
    steps = (event for event in events if isinstance(event, Step))
    return zip(steps, (event for event in events if isinstance(event, Proposed)), strict=True)


def proposers(proposal: Proposed) -> list[str]:
    return [name for name, count in proposal.by for _ in range(count)]


def check(step: Step, proposal: Proposed, piece: Callable[[int], str]) -> None:
    """The path is the step's proposed tokens, from the text so far downwards."""
    texts = [piece(token) for token in step.tokens]
    assert proposal.committed == texts
    own = [origin in ("forced", "drafted") for origin in step.origins]
    assert [proposal.tokens[i] for i in proposal.path] == [
        text for text, proposed in zip(texts, own, strict=True) if proposed
    ]
    verified = len(proposal.tokens) - proposal.cut
    parents = proposal.parents or list(range(-1, verified - 1))
    assert len(parents) == verified
    assert [parents[i] for i in proposal.path] == [-1, *proposal.path][: len(proposal.path)]
    assert len(proposers(proposal)) == len(proposal.tokens)
    forced = proposers(proposal)[:verified].count("grammar")
    assert proposers(proposal)[:forced] == ["grammar"] * forced
    assert verified - forced == step.drafted
    assert step.origins.count("forced") == min(forced, len(step.origins))


@dataclass
class Strict(ByteTokenizer):
    """Refuses to tell a token's text while a clock runs."""

    clock: Clock

    def __post_init__(self) -> None:
        super().__init__()

    def piece(self, token: int) -> str:
        assert not self.clock.running
        return super().piece(token)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_accepted_path_is_what_the_step_drafted(temperature: float) -> None:
    """Telling it is on nobody's clock."""
    sampling = Sampling(temperature, seed=2)
    request, clock = Request("x", max_new_tokens=60, sampling=sampling, top=2), Clock()
    proposers_met: set[str] = set()
    for name, make in drafters(ENGINE, sampling).items():
        column = run(ENGINE, request, make(), clock=clock, tokenizer=Strict(clock))
        steps = list(pairs(column.events))
        assert len(steps) == len(column.steps)
        for step, proposal in steps:
            check(step, proposal, PIECE)
            text = "".join(text for _, text in step.spans)
            assert "".join(proposal.committed).removesuffix("<eos>") == text, name
            assert step.rows >= 1 + len(proposal.tokens) + proposal.scratch
        proposers_met |= {who for _, proposal in steps for who in proposers(proposal)}
    assert proposers_met == {"prompt lookup", "draft model", "n-gram pool"}


@pytest.mark.parametrize("column", ["grammar", "lookup:k=4", "lookahead", "speculative:k=4"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_forces_first(column: str, temperature: float) -> None:
    columns = (parse_column(column).with_settings({"grammar": LOOPS}),)
    request = Request("<li>one</li> Say", 40, Sampling(temperature, seed=5), chat=False)
    events: list[Event] = []
    race = Race(request, columns, ModelSpec("fake-loop", "fake"))
    race.run(LoadedModels(), events.append, lambda: False)
    for step, proposal in pairs(events):
        check(step, proposal, PIECE)
        assert len(proposal.allowed) == 1 + len(proposal.tokens) - proposal.cut
    assert any("grammar" in proposers(proposal) for _, proposal in pairs(events))


def test_a_branch_that_a_grammar_rules_out_keeps_its_proposer() -> None:
    constraint = compile_grammar(LOOPS, ENGINE.tokenizer)
    names = ("one", "two", "three", "four", "five")
    offered = Proposal(tuple(b"x<yhl"), (-1, -1, 0, 1, 1), by=names)
    legal = constraint.cut(offered)
    logits = np.zeros((4, 257), dtype=np.float32)
    allowed = constraint.masks_along(legal)
    outcome = Outcome(tuple(b"<li"), (0, 2), legal, logits)
    proposal = proposed(0, offered, outcome, allowed, Request("x"), PIECE)
    assert (proposal.tokens, proposal.cut, proposal.parents) == (list("<hlxy"), 2, [-1, 0, 0])
    assert proposers(proposal) == ["two", "four", "five", "one", "three"]
    assert (proposal.path, proposal.chosen, proposal.allowed) == ([0, 2], "i", [1, 2, 1, 1])


@pytest.mark.parametrize("length", range(1, 7))
def test_what_is_accepted_behind_the_end_is_not_committed(length: int) -> None:
    """A stop string inside an accepted block: the tokens behind it were never part of the text."""
    plain = Request("x", max_new_tokens=40)
    text = run(ENGINE, plain).score.text
    truth = naive(ENGINE, PROMPT, plain)
    request = replace(plain, stop=(text[length : length + 2],))
    column = run(ENGINE, request, Script(truth, len(PROMPT), k=8))
    steps = list(pairs(column.events))
    for step, proposal in steps:
        check(step, proposal, PIECE)
    ended = steps[-1][1]
    assert (len(ended.tokens), ended.path, ended.chosen) == (8, list(range(length + 1)), "")


def test_what_the_model_gave_a_token_is_told_whatever_a_grammar_allows() -> None:
    """A brace that a grammar left no choice about was 100 % likely; the model had given it 78 %."""
    constraint = compile_grammar(shipped()["json"], ENGINE.tokenizer)
    column = run(ENGINE, Request("x", max_new_tokens=1, top=5), constraint=constraint)
    ((step, proposal),) = pairs(column.events)
    weights = np.exp(ENGINE.logits(PROMPT).astype(np.float64))
    shares = {piece: share for piece, share in proposal.top[0]}  # noqa: C416
    expected = weights[step.tokens[0]] / weights.sum()
    assert shares[PIECE(step.tokens[0])] == pytest.approx(expected, rel=6e-3)
    assert max(shares.values()) == pytest.approx(weights.max() / weights.sum(), rel=6e-3)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
@pytest.mark.parametrize("promise", ["text", "distribution"])
def test_the_most_probable_tokens_are_the_targets(temperature: float, promise: str) -> None:
    sampling = Sampling(temperature, top_k=20, seed=4)
    request = Request("x", max_new_tokens=40, sampling=sampling, top=5)
    draft = drafting(replace(ENGINE, salt=3), DraftLength(3), Sampler(sampling))
    rule = {"verifier": DistributionVerifier()} if promise == "distribution" else {}
    column = run(ENGINE, request, draft, **rule)
    text = list(PROMPT)
    for step, proposal in pairs(column.events):
        assert len(proposal.top) == len(step.tokens)
        for token, best in zip(step.tokens, proposal.top, strict=True):
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
