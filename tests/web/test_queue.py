"""The queue: first come, first served, whoever leaves."""

from hypothesis import given
from hypothesis import strategies as st

from backend.web.queue import RaceQueue


@given(st.lists(st.integers(-1, 8), max_size=40))
def test_places_are_kept_in_order_whoever_joins_or_leaves(moves: list[int]) -> None:
    """-1 joins; any other number leaves with the place of that number, present or not."""
    line, places, waiting = RaceQueue[list[None]](), list[list[None]](), list[int]()
    for move in moves:
        if move < 0:
            waiting.append(len(places))
            places.append([])  # all equal, and yet told apart
            line.join(places[-1])
        elif move < len(places):
            line.leave(places[move])
            waiting = [number for number in waiting if number != move]
        for number, place in enumerate(places):
            expected = waiting.index(number) if number in waiting else 0
            assert line.ahead(place) == expected
        assert [id(place) for place in line.places] == [id(places[number]) for number in waiting]
