"""Fair turns: nobody who takes long keeps the others from theirs, and nobody fills the line."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from backend.errors import DerbyError
from backend.web.turns import MAX_LATE, MAX_WAITING, Turns


class Line:
    """Turns of two places, and who has had one, in order."""

    def __init__(self) -> None:
        self.turns = Turns(2)
        self.had: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def come(self, *visitors: str) -> None:
        """Have visitors ask for a turn, each in a task of its own."""
        for visitor in visitors:
            self._tasks.append(asyncio.create_task(self._enter(visitor)))
            await asyncio.sleep(0)
        await self.settle()

    async def leave(self, visitor: str, *, late: bool = False) -> None:
        self.turns.leave(visitor, late=late)
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def _enter(self, visitor: str) -> None:
        await self.turns.enter(visitor)
        self.had.append(visitor)


def played(scene: Callable[[Line], Coroutine[Any, Any, None]]) -> list[str]:
    line = Line()
    asyncio.run(scene(line))
    return line.had


def test_turns_come_in_order_and_a_visitor_has_one_at_a_time() -> None:
    async def scene(line: Line) -> None:
        await line.come("a", "a", "b", "c")
        assert line.had == ["a", "b"]
        await line.leave("b")
        assert line.had == ["a", "b", "c"], "the second turn of a waits for the first"
        await line.leave("a")

    assert played(scene) == ["a", "b", "c", "a"]


def test_those_who_took_long_share_one_place() -> None:
    async def scene(line: Line) -> None:
        for visitor in ("slow", "slower"):
            await line.come(visitor)
            await line.leave(visitor, late=True)
        await line.come("slow", "slower")
        assert line.had[2:] == ["slow"], "a place is kept free for others"
        await line.come("new")
        assert line.had[3:] == ["new"]
        await line.leave("slow")

    assert played(scene)[4:] == ["slower"]


def test_a_newer_turn_replaces_one_that_waits() -> None:
    async def scene() -> None:
        turns = Turns(2)
        for visitor in "ab":
            await turns.enter(visitor)
        older = asyncio.create_task(turns.enter("c"))
        await asyncio.sleep(0)
        newer = asyncio.create_task(turns.enter("c"))
        with pytest.raises(DerbyError, match="newer change"):
            await older
        turns.leave("a", late=False)
        await newer

    asyncio.run(scene())


def test_one_who_goes_gives_the_turn_back() -> None:
    async def scene() -> None:
        turns = Turns(2)
        for visitor in "ab":
            await turns.enter(visitor)
        for visitor in ("waits", "was just admitted"):
            gone = asyncio.create_task(turns.enter(visitor))
            await asyncio.sleep(0)
            if visitor != "waits":
                turns.leave("a", late=False)
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
        await turns.enter("next")

    asyncio.run(scene())


def test_what_waits_and_what_is_remembered_is_bounded() -> None:
    async def scene() -> None:
        turns = Turns(2)
        for number in range(MAX_LATE + 10):
            await turns.enter(f"late {number}")
            turns.leave(f"late {number}", late=True)
        assert len(turns._late) == MAX_LATE
        for visitor in "ab":
            await turns.enter(visitor)
        tasks = [asyncio.create_task(turns.enter(f"{n}")) for n in range(MAX_WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(DerbyError, match=rf"{MAX_WAITING} visitors wait"):
            await turns.enter("one more")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not turns._waiting

    asyncio.run(scene())
