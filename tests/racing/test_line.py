"""The line: everybody has a turn in the order of coming, a guest has two waiting places, and time
counts from the turn.
"""

import asyncio
from contextlib import ExitStack

import pytest

from backend.errors import DerbyError
from backend.racing import line as module
from backend.racing.line import EACH, Line, Place


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PERIOD", 0.001)


async def turn(place: Place) -> None:
    async for _ in place.ahead():
        pass


def test_turns_come_in_the_order_of_coming_and_one_at_a_time() -> None:
    order, together = list[str](), 0

    async def visit(line: Line, guest: str) -> None:
        nonlocal together
        with line.place(guest) as place:
            await turn(place)
            together += 1
            assert together == 1
            order.append(guest)
            await asyncio.sleep(0.002)
            together -= 1

    async def all_of() -> None:
        line = Line(9)
        await asyncio.gather(*(visit(line, guest) for guest in "abcda"))

    asyncio.run(all_of())
    assert order == [*"abcda"]


def test_a_guest_has_two_waiting_places_and_others_have_theirs() -> None:
    line = Line(5)
    with ExitStack() as inside:
        for _ in range(1 + EACH):  # one has the turn
            inside.enter_context(line.place("one"))
        for _ in range(40):
            with pytest.raises(DerbyError, match="yours"), line.place("one"):
                pass
        inside.enter_context(line.place("two"))
        inside.enter_context(line.place("three"))
        inside.enter_context(line.place("four"))
        with pytest.raises(DerbyError, match="5 races"), line.place("five"):
            pass
    with line.place("one"):
        pass


def test_who_leaves_lets_the_next_one_on_whether_he_waits_or_not() -> None:
    async def leave() -> None:
        line = Line(5)
        with ExitStack() as first, ExitStack() as second:
            first.enter_context(line.place("first"))
            second.enter_context(line.place("second"))
            with line.place("last") as last:
                assert await anext(last.ahead()) == 2
                second.close()
                assert await anext(last.ahead()) == 1
                first.close()
                await turn(last)

    asyncio.run(leave())


def test_time_counts_from_the_turn_and_only_while_others_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)

    async def wait() -> None:
        nonlocal now
        line = Line(5)
        with ExitStack() as first:
            first.enter_context(line.place("first"))
            with line.place("second") as second, line.place("third"):
                now = 100.0
                first.close()
                await turn(second)
                now = 109.0
                assert not second.overdue(10)
                now = 111.0
                assert second.overdue(10)
            with line.place("alone") as alone:
                await turn(alone)
                now = 999.0
                assert not alone.overdue(10)

    asyncio.run(wait())


def test_who_wants_another_turn_goes_behind_those_that_wait() -> None:
    async def again() -> None:
        line = Line(5)
        with line.place("many") as many, line.place("one") as one:
            await turn(many)
            many.again()
            await turn(one)
            assert await anext(many.ahead()) == 1

    asyncio.run(again())
