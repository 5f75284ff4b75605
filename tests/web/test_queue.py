"""The queue: first come, first served, whoever leaves."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from backend.web.queue import RaceQueue


@given(st.lists(st.integers(-1, 8), max_size=40))
def test_places_are_kept_in_order_whoever_joins_or_leaves(moves: list[int]) -> None:
    """-1 joins; any other number leaves with the ticket of that number, present or not."""
    line, tickets, waiting = RaceQueue(), list[object](), list[int]()
    for move in moves:
        if move < 0:
            waiting.append(len(tickets))
            tickets.append(line.join())
        elif move < len(tickets):
            line.leave(tickets[move])
            waiting = [number for number in waiting if number != move]
        for number, ticket in enumerate(tickets):
            expected = waiting.index(number) if number in waiting else 0
            assert line.ahead(ticket) == expected


def test_many_threads_get_different_places() -> None:
    line, barrier = RaceQueue(), threading.Barrier(8)
    tickets: list[object] = []

    def join() -> None:
        barrier.wait()
        tickets.extend(line.join() for _ in range(50))

    threads = [threading.Thread(target=join) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(line.ahead(ticket) for ticket in tickets) == list(range(400))
