"""The line: in order, one at a time, and nobody waits for a slow reader."""

import asyncio
from contextlib import aclosing
from typing import Any

from asking import PLACE

from backend.events import Finished
from backend.limits import PRIVATE
from backend.racing.hosts.inline import InlineHost
from backend.racing.race import Race
from backend.serving.queue import RaceQueue
from backend.strategies.column import parse_column
from backend.types import Request


def race_of(tokens: int) -> Race:
    return Race(Request("Hello", tokens), (parse_column("kv"),), PLACE)


async def ended(events: Any, order: list[str], name: str) -> None:
    async with aclosing(events):
        kinds = [type(event) async for event in events]
    assert kinds.count(Finished) == 1
    order.append(name)


def test_a_slow_reader_keeps_nobody_waiting() -> None:
    """The line moved on once an answer had been sent, which its reader decided."""

    async def serve() -> None:
        line, order = RaceQueue(InlineHost(), PRIVATE), list[str]()
        slow = line.events(race_of(50))
        await anext(slow)
        await ended(line.events(race_of(3)), order, "quick")
        await ended(slow, order, "slow")
        assert order == ["quick", "slow"]

    asyncio.run(serve())


def test_who_came_first_is_first() -> None:
    async def serve() -> None:
        line, order = RaceQueue(InlineHost(), PRIVATE), list[str]()
        names = [str(number) for number in range(20)]
        await asyncio.gather(*(ended(line.events(race_of(2)), order, name) for name in names))
        assert order == names

    asyncio.run(serve())
