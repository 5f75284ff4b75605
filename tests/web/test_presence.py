"""Presence: a visitor is there while they have a connection, whatever opens and closes."""

import threading

from clock import Clock
from hypothesis import given
from hypothesis import strategies as st

from backend.web.presence import Presence


@given(st.lists(st.sampled_from(("open", "close", "seen")), max_size=30))
def test_a_visitor_is_absent_exactly_while_no_connection_is_open(moves: list[str]) -> None:
    clock = Clock()
    presence = Presence(clock)
    count, since = 0, None
    for move in moves:
        clock.time += 1
        if move == "open":
            presence.opened("a")
            count += 1
        elif move == "close" and count:
            presence.closed("a")
            count -= 1
            since = clock.time
        elif move == "seen":
            presence.seen("a")
            since = clock.time
        expected = None if count else clock.time if since is None else since
        assert presence.absent_since("a") == expected
    assert presence.absent_since("b") == clock.time
    assert presence.met("a") is ("open" in moves)


def test_the_long_absent_are_forgotten_and_nobody_else() -> None:
    """Whoever left first is forgotten first; a connection, or a request, keeps a visitor."""
    clock = Clock()
    presence = Presence(clock)
    for name in "abcd":
        presence.opened(name)
    for name in "abc":
        presence.closed(name)
        clock.time += 10
    presence.seen("a")
    assert presence.forget_absent(10) == ["b", "c"]
    assert presence.forget_absent(10) == []
    assert [presence.met(name) for name in "abcd"] == [True, False, False, True]
    clock.time += 1000
    assert presence.forget_absent(10) == ["a"]
    assert presence.absent_since("d") is None


def test_connections_of_many_threads_are_counted() -> None:
    presence = Presence()

    def come_and_go() -> None:
        for _ in range(300):
            presence.opened("a")
            presence.closed("a")

    presence.opened("a")
    threads = [threading.Thread(target=come_and_go) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert presence.absent_since("a") is None
    presence.closed("a")
    assert presence.absent_since("a") is not None
