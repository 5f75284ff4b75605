"""The loop and its clock: any drafter under any request writes what the definition says, token for
token, and ends where it must (end of text, stop string, limit) wherever in a block that falls. Its
events count what happened. The clock counts a column's own steps, device included, nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_runs import PROMPT, Script, drafters, naive, run
from numpy.typing import NDArray

from backend.decoding import clock as clock_module
from backend.decoding.clock import Clock, Phase
from backend.decoding.verification import KEYED, DistributionVerifier, Verifier
from backend.engines.fake import FakeEngine
from backend.errors import DerbyError
from backend.events import Finished, Prefilled, Proposed, Step
from backend.tokenizer import ByteTokenizer
from backend.types import Request, Sampling

MODELS = {
    "varied": FakeEngine(),
    "repetitive": FakeEngine(period=2, sharpness=4.0),
    "short-lived": FakeEngine(period=1, sharpness=1.0),
}


@pytest.mark.parametrize(
    ("model", "sampling", "tokens", "cache"),
    [
        ("varied", Sampling(), 60, True),
        ("repetitive", Sampling(1.0, seed=2**62), 40, True),
        ("short-lived", Sampling(0.7), 40, True),
        ("repetitive", Sampling(0.7, seed=1), 20, False),
        ("short-lived", Sampling(repetition_penalty=1.5), 40, True),
        ("varied", Sampling(1.0, min_p=0.1, repetition_penalty=0.7), 40, True),
    ],
    ids=str,
)
def test_every_drafter_writes_the_text_of_the_definition(
    model: str, sampling: Sampling, tokens: int, cache: bool
) -> None:
    engine = MODELS[model]
    request = Request("x", max_new_tokens=tokens, sampling=sampling)
    expected = naive(engine, PROMPT, request)
    plain = run(engine, request).score.text
    for name, make in drafters(engine, sampling).items():
        column = run(engine, request, make(), cache=cache)
        assert column.tokens == expected, name
        assert column.score.text == plain


@pytest.mark.parametrize("wrong", range(9))
def test_a_rejection_at_any_position_of_a_block_changes_nothing(wrong: int) -> None:
    engine = MODELS["varied"]
    request = Request("x", max_new_tokens=60, sampling=Sampling(0.8, seed=3))
    truth = naive(engine, PROMPT, request)
    drafter = Script(truth, len(PROMPT), k=8, wrong=wrong)
    column = run(engine, request, drafter)
    assert column.tokens == truth
    full = [o for o in drafter.outcomes[1:] if o.proposal.drafted == 8]
    assert {len(o.path) for o in full} == {min(8, wrong)}


@given(
    model=st.sampled_from(list(MODELS)),
    temperature=st.sampled_from([0.0, 0.5, 1.0]),
    top_k=st.sampled_from([0, 1, 5]),
    top_p=st.sampled_from([0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.2]),
    penalty=st.sampled_from([0.6, 1.0, 1.3]),
    ignore_eos=st.booleans(),
    seed=st.integers(0, 2**63 - 1),
    prompt=st.binary(min_size=1, max_size=200),
    length=st.integers(1, 40),
    pick=st.integers(0, 10**6),
)
@settings(max_examples=100, deadline=None)
def test_any_request_any_drafter(
    model: str,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    penalty: float,
    ignore_eos: bool,
    seed: int,
    prompt: bytes,
    length: int,
    pick: int,
) -> None:
    engine = MODELS[model]
    sampling = Sampling(temperature, top_k, top_p, seed, min_p, penalty)
    request = Request("x", length, sampling, ignore_eos=ignore_eos)
    choices = list(drafters(engine, sampling).items())
    name, make = choices[pick % len(choices)]
    column = run(engine, request, make(), prompt=tuple(prompt))
    assert column.tokens == naive(engine, tuple(prompt), request), name


class EndAt(FakeEngine):
    """Ends its text at a fixed length, so that EOS can fall on every offset of a block."""

    end: int = 0

    def logits(self, prefix):
        values = super().logits(prefix)
        values[ByteTokenizer.EOS] = 1e4 if len(prefix) - len(PROMPT) == self.end else -1e4
        return values


@pytest.mark.parametrize("offset", range(10))
def test_eos_inside_an_accepted_block_ends_the_text_there(offset: int) -> None:
    engine = EndAt()
    engine.end = 9 + offset
    request = Request("x", max_new_tokens=60)
    truth = naive(engine, PROMPT, request)
    assert len(truth) == engine.end + 1
    drafter = Script([*truth, *range(65, 75)], len(PROMPT), k=8, wrong=99)
    column = run(engine, request, drafter)
    assert column.tokens == truth
    assert column.reason == "end of text"
    assert column.score.positions[0][0] == sum(1 for s in column.steps if s.drafted)
    assert sum(accepted for _, accepted in column.score.positions) == column.score.accepted


def test_a_text_of_fixed_length_goes_on_behind_its_end() -> None:
    engine = EndAt()
    engine.end = 9
    request = Request("x", max_new_tokens=30, ignore_eos=True)
    truth = naive(engine, PROMPT, request)
    for name, make in drafters(engine, request.sampling).items():
        column = run(engine, request, make())
        assert (column.tokens, column.reason) == (truth, "token limit"), name
    assert (len(truth), truth.index(ByteTokenizer.EOS)) == (30, 9)
    seen = run(engine, request).score.text
    stopped = run(engine, replace(request, stop=(seen[20],)))
    assert (stopped.reason, stopped.score.text) == ("stop string", seen[: seen.index(seen[20])])


@pytest.mark.parametrize("penalty", [0.5, 1.6])
def test_a_draft_that_is_the_target_is_right_under_a_repetition_penalty(penalty: float) -> None:
    """It would not be if it did not count its own guesses among what the text has seen."""
    engine, sampling = MODELS["short-lived"], Sampling(0.8, repetition_penalty=penalty)
    request = Request("x", max_new_tokens=40, sampling=sampling)
    column = run(engine, request, drafters(engine, sampling)["same draft k=8"](), PROMPT[:9])
    assert column.score.accepted == column.score.drafted > 20


@pytest.mark.parametrize("start", [1, 4, 7, 10])
@pytest.mark.parametrize("length", [1, 3])
def test_a_stop_string_at_any_offset_ends_text_and_tokens_alike(start: int, length: int) -> None:
    engine = MODELS["varied"]
    plain = Request("x", max_new_tokens=30)
    text = run(engine, plain).score.text
    stop = text[start : start + length]
    request = replace(plain, stop=(stop, "never there"))
    expected = run(engine, request)
    assert expected.score.text == text[: text.index(stop)]
    assert expected.reason == "stop string"
    for name, make in drafters(engine, request.sampling).items():
        column = run(engine, request, make())
        assert (column.tokens, column.score.text) == (expected.tokens, expected.score.text), name


def test_bookkeeping_adds_up() -> None:
    engine = MODELS["repetitive"]
    request = Request("x", max_new_tokens=50, sampling=Sampling(0.7))
    for name, make in drafters(engine, request.sampling).items():
        before = engine.forwards
        column = run(engine, request, make())
        score = column.score
        assert sum(offered for offered, _ in score.positions) == score.drafted, name
        assert sum(accepted for _, accepted in score.positions) == score.accepted, name
        for step in column.steps:
            assert len(step.tokens) == len(step.origins) == len(step.gaps)
            assert step.origins.count("drafted") == step.accepted <= step.drafted
            assert len(step.tokens) - step.accepted in (0, 1)
        if "same" not in name:  # the draft's forwards count on the same engine there
            prefills = sum(isinstance(e, Prefilled) for e in column.events)
            assert engine.forwards - before == len(column.steps) + prefills, name


def test_a_stateless_column_computes_the_whole_prefix_for_every_token() -> None:
    engine = FakeEngine()
    request = Request("x", max_new_tokens=20)
    cached = run(engine, request)
    assert engine.rows == len(PROMPT) + len(cached.tokens) - 1
    engine.rows = 0
    run(engine, request, cache=False)
    assert engine.rows == sum(len(PROMPT) + i for i in range(len(cached.tokens)))


def test_long_prompts_are_prefilled_in_chunks_that_report_progress() -> None:
    engine = MODELS["varied"]
    events = run(engine, Request("x", max_new_tokens=3), prompt=PROMPT * 5).events
    done = [event.done for event in events if isinstance(event, Prefilled)]
    assert done == [64 * i for i in range(1, (len(PROMPT) * 5 - 1) // 64 + 1)]
    assert isinstance(events[-1], Finished)
    assert all(isinstance(event, Step | Proposed) for event in events[len(done) : -1])


class Damaged(FakeEngine):
    """Weights that are not numbers, from the first step on or behind so many tokens."""

    good = 0

    def logits(self, prefix: Sequence[int]) -> NDArray[np.float32]:
        logits = super().logits(prefix)
        return logits if len(prefix) < self.good else np.full_like(logits, np.nan)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("good", [0, len(PROMPT) + 3])
@pytest.mark.parametrize("verifier", [KEYED, DistributionVerifier()])
def test_logits_that_are_not_numbers_fail_the_column(
    temperature: float, good: int, verifier: Verifier
) -> None:
    """Else they are an empty text that all columns share."""
    request = Request("x", max_new_tokens=9, sampling=Sampling(temperature))
    engine = Damaged()
    engine.good = good
    with pytest.raises(DerbyError, match="not numbers"):
        run(engine, request, verifier=verifier)


# The clock ----------------------------------------------------------------------------------------

PHASES: tuple[Phase, ...] = ("draft", "mask", "forward")
SECONDS = st.integers(0, 100).map(float)


@dataclass
class Hand:
    """A wall clock that moves only when told; and a log of when the device was waited for."""

    now: float = 1000.0
    waits: list[float] = field(default_factory=list)
    queued: float = 0.0

    def synchronize(self) -> None:
        self.now += self.queued
        self.queued = 0.0
        self.waits.append(self.now)


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Hand:
    hand = Hand()
    monkeypatch.setattr(clock_module, "perf_counter", lambda: hand.now)
    return hand


@given(st.lists(st.lists(st.tuples(st.sampled_from([*PHASES, None]), SECONDS, SECONDS))))
def test_parts_and_rest_add_up_to_the_steps_and_steps_to_the_clock(
    steps: list[list[tuple[Phase | None, float, float]]],
) -> None:
    hand = Hand()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock_module, "perf_counter", lambda: hand.now)
        clock = Clock(hand.synchronize)
        spent = 0.0
        for step in steps:
            with clock.step():
                assert clock.running
                for part, seconds, _ in step:
                    if part is None:
                        hand.now += seconds
                        continue
                    with clock.phase(part):
                        hand.now += seconds / 2
                        hand.queued += seconds / 2  # work the device has not done yet
            spent += sum(seconds for _, seconds, _ in step)
            assert not clock.running
            for name in PHASES:
                assert clock.last[name] == sum(s for part, s, _ in step if part == name)
            assert clock.last["rest"] == sum(s for part, s, _ in step if part is None)
            assert clock.last["total"] == sum(s for _, s, _ in step)
            assert clock.seconds == spent
            hand.now += sum(pause for _, _, pause in step)  # other columns' turns
        assert clock.seconds == spent


def test_a_step_waits_for_the_device_before_it_starts_and_before_it_ends(hand: Hand) -> None:
    clock = Clock(hand.synchronize)
    hand.queued = 5.0  # another column's work must not be counted
    with clock.step():
        assert hand.waits == [1005.0]
        hand.queued = 3.0  # its own must
    assert hand.waits == [1005.0, 1008.0]
    assert clock.seconds == clock.last["total"] == 3.0


def test_a_step_inside_a_step_is_refused_and_one_that_raises_ends_and_counts(hand: Hand) -> None:
    clock = Clock()
    with clock.step():
        hand.now += 1
        with pytest.raises(RuntimeError, match="inside another"), clock.step():
            pass
        assert clock.running
        hand.now += 1
    assert clock.seconds == 2

    def broken() -> None:
        with clock.step(), clock.phase("forward"):
            hand.now += 2
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert (clock.running, clock.seconds, clock.last["forward"]) == (False, 4, 2)


def test_a_device_that_fails_while_it_is_waited_for_does_not_leave_the_clock_running() -> None:
    """An asynchronous device reports its errors when it is waited for."""

    def broken() -> None:
        if clock.running:
            raise ZeroDivisionError

    clock = Clock(broken)
    with pytest.raises(ZeroDivisionError), clock.step():
        pass
    assert not clock.running
