"""The quota: so many races in any hour, and a sentence that says when the next may begin."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.errors import DerbyError
from backend.web.quota import HOUR, Quota


@given(st.integers(1, 5), st.lists(st.floats(0, HOUR), max_size=40))
def test_no_hour_holds_more_races_than_allowed(most: int, pauses: list[float]) -> None:
    quota, now, begun = Quota(most), 0.0, list[float]()
    for pause in pauses:
        now += pause
        expected = sum(time > now - HOUR for time in begun) < most
        try:
            quota.require("a", now)
        except DerbyError:
            assert not expected
        else:
            assert expected
            quota.count("a", now)
            begun.append(now)


def test_the_sentence_says_how_many_and_when_the_next_is_possible() -> None:
    quota = Quota(2)
    for now in (0, 60):
        quota.require("a", now)
        quota.count("a", now)
    with pytest.raises(DerbyError, match=r"2 races within an hour.*2 are allowed.*in 59 min\."):
        quota.require("a", 100)
    with pytest.raises(DerbyError, match=r"in 5 s\."):
        quota.require("a", HOUR - 5)
    quota.require("b", 100)
    quota.require("a", HOUR + 1)


def test_visitors_of_earlier_hours_are_forgotten() -> None:
    quota = Quota(3)
    for number in range(1000):
        quota.count(f"visitor {number}", number * 60)
    assert len(quota._begun) <= 60
