"""The interleaver: the lowest clock has the next turn, and no turn is longer than it may be; a lane
that fails, even as it is closed, fails alone; a stop ends every lane once, with the text that it
held back; all lanes are closed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from race_runs import never
from scoreboards import step

from backend.decoding.clock import Clock
from backend.errors import DerbyError
from backend.events import Event, Failed, Finished, Prefilled, Step
from backend.racing.schedule import Lane, interleave

DURATIONS = st.lists(
    st.lists(st.integers(1, 50).map(lambda n: n / 8), min_size=1, max_size=12),
    min_size=1,
    max_size=6,
)


HELD_BACK = [["sampled", "rest"]]


@dataclass
class Column:
    """A lane that spends the given times, the first so many of them on its prompt, then ends or
    raises; knows whether it was closed. Once `stopped`, it ends with what it held back.
    """

    index: int
    durations: list[float]
    error: Exception | None = None
    closing: Exception | None = None
    reads: int = 1
    clock: Clock = field(default_factory=Clock)
    closed: bool = False
    stopped: Callable[[], bool] = lambda: False

    def events(self) -> Iterator[Event]:
        ended = False
        try:
            yield Prefilled(self.index, 0, 0.0)
            for number, seconds in enumerate(self.durations):
                if self.stopped():
                    yield Finished(self.index, "stopped", HELD_BACK)
                    return
                self.clock.seconds += seconds
                read = Prefilled(self.index, 0, seconds)
                yield read if number < self.reads else step(self.index, [number], seconds)
            if self.error:
                raise self.error
            ended = True
            yield Finished(self.index, "token limit", [])
        finally:
            self.closed = True
            if self.closing and not ended:
                raise self.closing

    def lane(self) -> Lane:
        return Lane(self.index, self.events(), self.clock)


@given(DURATIONS, st.sampled_from([0.0, 0.5, 3.0]), st.integers(0, 12))
def test_a_turn_goes_to_the_lowest_clock_and_lasts_no_longer_than_it_may(
    durations: list[list[float]], turn: float, reads: int
) -> None:
    columns = [Column(i, times, reads=reads) for i, times in enumerate(durations)]
    before = [0.0 for _ in columns]
    running = set(range(len(columns)))
    seen: list[list[Event]] = [[] for _ in columns]
    on_turn, began = -1, 0.0
    for event in interleave([column.lane() for column in columns], never, turn):
        assert not isinstance(event, Failed)
        index = event.column
        wrote = on_turn >= 0 and any(isinstance(event, Step) for event in seen[on_turn])
        if on_turn not in running or (wrote and before[on_turn] - began >= turn):
            assert before[index] == min(before[i] for i in running)
            on_turn, began = index, before[index]
        assert index == on_turn
        before = [column.clock.seconds for column in columns]
        seen[index].append(event)
        if isinstance(event, Finished):
            running.discard(index)
    for column, events in zip(columns, seen, strict=True):
        alone = Column(column.index, column.durations, reads=reads)
        assert events == list(alone.events()), "all, in order"
        assert column.closed


@given(DURATIONS, st.data())
def test_a_failing_lane_fails_alone(durations: list[list[float]], data: st.DataObject) -> None:
    broken = data.draw(st.integers(0, len(durations) - 1))
    columns = [Column(i, times) for i, times in enumerate(durations)]
    columns[broken].error = DerbyError("The prompt is too long: 9 of 8 tokens.")
    events = list(interleave([column.lane() for column in columns], never))
    for i, column in enumerate(columns):
        own = [event for event in events if getattr(event, "column", -1) == i]
        if i == broken:
            assert own[-1] == Failed(i, "The prompt is too long: 9 of 8 tokens.")
        else:
            assert own[-1] == Finished(i, "token limit", [])
        assert len(own) == len(column.durations) + 2
        assert column.closed


@given(DURATIONS, st.integers(0, 60))
def test_stop_ends_every_lane_that_still_runs_exactly_once(
    durations: list[list[float]], after: int
) -> None:
    def stopped() -> bool:
        return len(events) >= after

    columns = [Column(i, times, stopped=stopped) for i, times in enumerate(durations)]
    events: list[Event] = []
    for event in interleave([column.lane() for column in columns], stopped):
        events.append(event)  # noqa: PERF402 (stopped() counts them meanwhile)
    ends = [event for event in events if isinstance(event, Finished)]
    assert sorted(event.column for event in ends) == list(range(len(columns)))
    assert all(isinstance(event, Finished) for event in events[after:])
    wrote = {event.column for event in events if isinstance(event, Step)}
    for event in ends:
        if event.reason == "stopped":
            assert event.spans == (HELD_BACK if event.column in wrote else [])
    # A lane that never had a turn has nothing open; every other one was closed.
    started = {event.column for event in events if isinstance(event, Prefilled)}
    assert all(columns[i].closed for i in started)


@pytest.mark.parametrize("length", range(1, 18))
def test_abandoning_the_stream_closes_every_lane(length: int) -> None:
    """Also if one of them fails as it is closed."""
    columns = [Column(i, [1.0] * 5) for i in range(3)]
    columns[0].closing = DerbyError("The cache cannot be freed.")
    stream = interleave([column.lane() for column in columns], never)
    started = {event.column for _, event in zip(range(length), stream, strict=False)}
    stream.close()
    assert [column.closed for column in columns] == [i in started for i in range(3)]


def test_a_clock_that_runs_across_a_yield_is_refused() -> None:
    clock = Clock()

    def cheating() -> Iterator[Event]:
        with clock.step():
            yield Prefilled(0, 0, 0.0)

    honest = Column(1, [1.0])
    with pytest.raises(RuntimeError, match="clock ran"):
        list(interleave([honest.lane(), Lane(0, cheating(), clock)], never))
    assert honest.closed
