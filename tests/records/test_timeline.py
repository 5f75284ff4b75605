"""A recorded race over again, by the columns' own clocks."""

from math import inf

import pytest
from recordings import EVERY, race_of

from backend.events import Conditions
from backend.records.record import board
from backend.records.timeline import paced, timeline
from backend.results.scoreboard import Scoreboard


def test_the_timeline_is_all_of_the_race_in_the_clocks_order() -> None:
    record = race_of(EVERY)
    moments = timeline(record)
    assert [at for at, _ in moments] == sorted(at for at, _ in moments)
    assert isinstance(moments[-1][1], Conditions)
    assert moments[-1][0] == inf
    seen = Scoreboard(record.columns)
    for at, event in moments:
        seen.add(event)
        if at < inf:
            assert seen.scores[event.column].seconds == at
    assert seen.scores == board(record).scores


@pytest.mark.parametrize("speed", [0.5, 1.0, 8.0])
def test_events_come_when_their_time_has_come(speed: float) -> None:
    clock = 100.0

    def wait(seconds: float) -> None:
        nonlocal clock
        assert seconds > 0
        clock += seconds

    moments = timeline(race_of("kv lookup"))
    shown = [(clock - 100, event) for event in paced(moments, speed, lambda: clock, wait)]
    assert [event for _, event in shown] == [event for _, event in moments]
    for (at, _), (seen, _) in zip(moments, shown, strict=True):
        assert at == inf or seen == pytest.approx(at / speed)


@pytest.mark.parametrize(("speed", "late"), [(0, 0.0), (1, 1e9)])
def test_at_once_and_what_is_late_is_not_waited_for(speed: float, late: float) -> None:
    """A terminal that draws slowly does not slow the race down as well."""
    waits, clock, moments = list[float](), iter([0.0, *[late] * 1000]), timeline(race_of("kv"))
    shown = list(paced(moments, speed, lambda: next(clock), waits.append))
    assert shown == [event for _, event in moments]
    assert not waits
