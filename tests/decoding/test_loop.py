"""The loop and its clock: any drafter under any request writes what the definition says, token for
token, and ends where it must (end of text, stop string, limit) wherever in a block that falls. Its
events count what happened. The clock counts a column's own steps, device included, nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_runs import PROMPT, drafters, naive, run
from numpy.typing import NDArray

from backend.decoding import clock as clock_module
from backend.decoding.clock import Clock, Phase
from backend.decoding.verification import KEYED, DistributionVerifier, Verifier
from backend.engines.fake import FakeEngine
from backend.errors import DerbyError
from backend.events import Prefilled
from backend.types import Request, Sampling

MODELS = {
    "varied": FakeEngine(),
    "repetitive": FakeEngine(period=2, sharpness=4.0),
    "short-lived": FakeEngine(period=1, sharpness=1.0),
}

REQUESTS = st.builds(
    Request,
    st.just("x"),
    max_new_tokens=st.integers(1, 40),
    sampling=st.builds(
        Sampling,
        temperature=st.sampled_from([0.0, 0.5, 1.0]),
        top_k=st.sampled_from([0, 1, 5]),
        top_p=st.sampled_from([0.5, 0.9, 1.0]),
        min_p=st.sampled_from([0.0, 0.2]),
        repetition_penalty=st.sampled_from([0.6, 1.0, 1.3]),
        seed=st.integers(0, 2**63 - 1),
    ),
    ignore_eos=st.booleans(),
)


@given(
    request=REQUESTS,
    model=st.sampled_from(list(MODELS)),
    cache=st.booleans(),
    prompt=st.binary(min_size=1, max_size=200).map(tuple),
    stop=st.tuples(st.integers(0, 20), st.integers(0, 3)),
    pick=st.integers(0, 10**6),
)
@settings(max_examples=120, deadline=None)
def test_any_request_any_drafter(
    request: Request,
    model: str,
    cache: bool,
    prompt: tuple[int, ...],
    stop: tuple[int, int],
    pick: int,
) -> None:
    """Also where the text stops before a piece of it."""
    engine, (start, length) = MODELS[model], stop
    choices = list(drafters(engine, request.sampling).items())
    name, make = choices[pick % len(choices)]
    plain = run(engine, request, prompt=prompt)
    assert plain.tokens == naive(engine, prompt, request)
    if piece := plain.score.text[start : start + length]:
        text, request = plain.score.text, replace(request, stop=(piece, "never there"))
        plain = run(engine, request, prompt=prompt)
        assert (plain.score.text, plain.reason) == (text[: text.index(piece)], "stop string")
    column = run(engine, request, make(), prompt, cache=cache)
    assert (column.tokens, column.reason) == (plain.tokens, plain.reason), name
    assert column.score.text == plain.score.text


@pytest.mark.parametrize("penalty", [0.5, 1.6])
def test_a_draft_that_is_the_target_is_right_under_a_repetition_penalty(penalty: float) -> None:
    """It would not be if it did not count its own guesses among what the text has seen."""
    engine, sampling = MODELS["short-lived"], Sampling(0.8, repetition_penalty=penalty)
    request = Request("x", max_new_tokens=40, sampling=sampling)
    column = run(engine, request, drafters(engine, sampling)["same draft k=8"](), PROMPT[:9])
    assert column.score.accepted == column.score.drafted > 20


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
    """A wall clock that moves only when told, and what the device has not done yet."""

    now: float = 1000.0
    queued: float = 0.0

    def synchronize(self) -> None:
        self.now += self.queued
        self.queued = 0.0


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
                        hand.queued += seconds / 2
                hand.queued += 1.0  # what no part waits for
            spent += 1.0 + sum(seconds for _, seconds, _ in step)
            assert not clock.running
            for name in PHASES:
                assert clock.last[name] == sum(s for part, s, _ in step if part == name)
            assert clock.last["rest"] == 1.0 + sum(s for part, s, _ in step if part is None)
            assert clock.last["total"] == 1.0 + sum(s for _, s, _ in step)
            assert clock.seconds == spent
            hand.queued += sum(pause for _, _, pause in step)  # others' work, still on the device
        assert clock.seconds == spent


def test_a_step_that_fails_ends_also_where_the_device_tells_only_then() -> None:
    def broken() -> None:
        if clock.running:
            raise ZeroDivisionError

    clock = Clock(broken)
    with pytest.raises(ZeroDivisionError), clock.step():
        pass
    assert not clock.running
    clock = Clock()
    with pytest.raises(RuntimeError, match="inside another"), clock.step(), clock.step():
        pass
    assert not clock.running
