"""Who is measured when: everybody warmed up, everybody first equally often."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.rotation import rounds


@given(st.integers(1, 5), st.integers(1, 12), st.data())
def test_every_side_measures_every_subject_once_and_comes_first_equally_often(
    count: int, subjects: int, data: st.DataObject
) -> None:
    warm_up = data.draw(st.integers(0, count))
    calls: list[tuple[int, int]] = []

    def side(name: int, subject: int) -> tuple[int, int, int]:
        calls.append((name, subject))
        return name, subject, len(calls)

    sides = [lambda subject, name=name: side(name, subject) for name in range(count)]
    begun: list[int] = []
    results = rounds(sides, range(subjects), begun.append, warm_up=warm_up)
    assert calls[:warm_up] == [(name, 0) for name in range(warm_up)]
    measured = calls[warm_up:]
    assert begun == list(range(subjects))
    for number, result in enumerate(results):
        own = measured[number * count : (number + 1) * count]
        assert sorted(own) == [(name, number) for name in range(count)]
        assert [(name, subject) for name, subject, _ in result] == sorted(own)
        assert all(call > warm_up for _, _, call in result), "a warm-up was counted"
    places = Counter((place % count, name) for place, (name, _) in enumerate(measured))
    for place in range(count):
        each = [places[place, name] for name in range(count)]
        assert max(each) - min(each) <= 1


def test_a_side_that_fails_ends_the_measurement() -> None:
    with pytest.raises(ZeroDivisionError):
        rounds([lambda subject: 1 // subject], [1, 0], lambda _: None, warm_up=1)
