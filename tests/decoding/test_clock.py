"""The clock counts what happens inside a step, splits it without loss, and nothing else."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.decoding import clock as clock_module
from backend.decoding.clock import Clock, Part

PARTS: tuple[Part, ...] = ("draft", "mask", "forward")
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
    made = Hand()
    monkeypatch.setattr(clock_module, "perf_counter", lambda: made.now)
    return made


@given(st.lists(st.lists(st.tuples(st.sampled_from([*PARTS, None]), SECONDS, SECONDS))))
def test_parts_and_rest_add_up_to_the_steps_and_steps_to_the_clock(
    steps: list[list[tuple[Part | None, float, float]]],
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
                    with clock.part(part):
                        hand.now += seconds / 2
                        hand.queued += seconds / 2  # work the device has not done yet
            spent += sum(seconds for _, seconds, _ in step)
            assert not clock.running
            for name in PARTS:
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


def test_a_step_inside_a_step_is_refused(hand: Hand) -> None:
    clock = Clock()
    with clock.step():
        hand.now += 1
        with pytest.raises(RuntimeError, match="inside another"), clock.step():
            pass
        assert clock.running
        hand.now += 1
    assert clock.seconds == 2


def test_a_step_that_raises_ends_and_counts(hand: Hand) -> None:
    clock = Clock()

    def broken() -> None:
        with clock.step(), clock.part("forward"):
            hand.now += 2
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert (clock.running, clock.seconds, clock.last["forward"]) == (False, 2, 2)


def test_a_device_that_fails_while_it_is_waited_for_does_not_leave_the_clock_running() -> None:
    """An asynchronous device reports errors when waited for; the schedule then took the lane's own
    error for a clock that ran out of turn and ended every column.
    """

    def broken() -> None:
        if clock.running:
            raise ZeroDivisionError

    clock = Clock(broken)
    with pytest.raises(ZeroDivisionError), clock.step():
        pass
    assert not clock.running
