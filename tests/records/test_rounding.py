"""Rounded times are short, and add up to what they were."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import floor, log10

import pytest
from recordings import EVERY, race_of

from backend.events import Step
from backend.records.record import RaceRecord, board
from backend.records.rounding import rounded


@pytest.mark.parametrize("digits", [2, 3])
def test_each_step_has_few_digits(digits: int) -> None:
    for event in rounded(race_of(EVERY), digits).events:
        if isinstance(event, Step):
            total = event.seconds["total"]
            assert total == float(f"{total:.{digits + 1}g}")
            parts = sum(v for name, v in event.seconds.items() if name != "total")
            assert parts == pytest.approx(total, abs=1e-12)


@pytest.mark.parametrize("digits", [2, 3])
def test_all_that_was_written_stays_and_times_stay_true(digits: int) -> None:
    """A part is not lost because it is shorter, every time, than the last digit that is told."""
    record = race_of("kv grammar", 120)
    drawn, shown = board(record), board(rounded(record, digits))
    for before, after in zip(drawn.scores, shown.scores, strict=True):
        assert after.tokens == before.tokens
        assert after.spans == before.spans
        steps = [now.clock - then.clock for then, now in pairwise(before.commits)]
        last_digit = 10 ** (floor(log10(max(before.ttft, *steps))) + 1 - digits)
        assert after.seconds == pytest.approx(before.seconds, abs=5 * last_digit)
        for part, seconds in before.parts.items():
            assert after.parts[part] == pytest.approx(seconds, abs=last_digit)


def test_what_is_always_short_is_told_now_and_then() -> None:
    """A mask of 20 us in a step of 20 ms would be 0 in every step."""
    parts = {"draft": 0.0, "mask": 2e-5, "forward": 0.02, "rest": 4e-5, "total": 0.02006}
    steps = [replace(one, seconds=parts) for one in [next(steps_of(race_of("kv")))] * 200]
    shown = list(steps_of(rounded(replace(race_of("kv"), events=tuple(steps)), 3)))
    for part, seconds in parts.items():
        told = [step.seconds[part] for step in shown]
        assert sum(told) == pytest.approx(200 * seconds, abs=3e-4)
        assert set(told) <= {0.0, 0.0001, 0.02, 0.0201, 0.0202}


def steps_of(record: RaceRecord) -> Iterator[Step]:
    return (event for event in record.events if isinstance(event, Step))
