"""The line of visitors: nobody overtakes, nobody blocks it, nothing is left behind."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

import pytest

from backend.errors import DerbyError
from backend.events import Event, Finished, Started
from backend.racing.race import Race
from backend.strategies.column import default_column
from backend.types import ModelSpec, Request
from backend.web import visitors as room
from backend.web.controller import Controller
from backend.web.offer import Offer
from backend.web.visitors import Frame, Visitors

RACE = Race(Request("Hi"), (default_column("kv"),), ModelSpec("fake", "fake"))


class SlowHost:
    """Its races end when they are stopped, or when the test lets all of them end."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.running = 0
        self.most = 0
        self.races = 0

    def stream(self, race: Race, stopped: Callable[[], bool]) -> Iterator[Event]:
        self.running += 1
        self.races += 1
        self.most = max(self.most, self.running)
        yield Started(0, 1, "m")
        while not (stopped() or self.release.wait(0.01)):
            pass
        self.running -= 1
        yield Finished(0, "stopped" if stopped() else "end of text", [])

    def close(self) -> None: ...


class BrokenHost(SlowHost):
    def stream(self, race: Race, stopped: Callable[[], bool]) -> Iterator[Event]:
        raise DerbyError("It is broken.")


async def frame_where(frames: AsyncIterator[Frame], test: Callable[[Frame], bool]) -> Frame:
    async for frame in frames:
        if test(frame):
            return frame
    raise AssertionError("the race ended before that")


def racing(frame: Frame) -> bool:
    return frame.board.scores[0].state == "prefill"


async def last(frames: AsyncIterator[Frame]) -> str:
    reason = ""
    async for frame in frames:
        reason = frame.board.scores[0].reason
    return reason


async def gone(visitors: Visitors) -> None:
    """Wait until nobody races or waits."""
    while visitors.count:
        await asyncio.sleep(0.01)


def play(scene: Coroutine[None, None, None]) -> None:
    """Run a test's scene; a wait in vain fails instead of hanging."""
    asyncio.run(asyncio.wait_for(scene, 30))


def test_one_race_at_a_time_in_order() -> None:
    async def scene() -> None:
        host = SlowHost()
        visitors = Visitors(host)
        first, second, third = (visitors.watch(name, RACE) for name in "abc")
        await frame_where(first, racing)
        assert (await anext(second)).ahead == 1
        assert (await anext(third)).ahead == 2
        visitors.stop("b")
        assert await last(second) == "stopped"
        assert host.races == 1
        await frame_where(third, lambda frame: frame.ahead == 1)
        host.release.set()
        assert await last(first) == "end of text"
        assert await last(third) == "end of text"
        assert host.most == 1
        await gone(visitors)

    play(scene())


def test_a_second_run_ends_the_visitors_first_one_only() -> None:
    async def scene() -> None:
        host = SlowHost()
        visitors = Visitors(host)
        other = visitors.watch("other", RACE)
        await frame_where(other, racing)
        first = visitors.watch("a", RACE)
        await anext(first)
        second = visitors.watch("a", RACE)
        await anext(second)
        assert await last(first) == "stopped"
        host.release.set()
        assert await last(second) == "end of text"
        assert await last(other) == "end of text"
        await gone(visitors)

    play(scene())


def test_a_reader_who_stops_reading_does_not_hold_up_the_line() -> None:
    """A closed tab: its frames are never asked for again, only `stop` is called."""

    async def scene() -> None:
        host = SlowHost()
        visitors = Visitors(host)
        racer, waiter = visitors.watch("racer", RACE), visitors.watch("waiter", RACE)
        await frame_where(racer, racing)
        await anext(waiter)
        visitors.stop("waiter")
        visitors.stop("racer")
        await gone(visitors)
        host.release.set()
        assert await last(visitors.watch("next", RACE)) == "end of text"

    play(scene())


def test_closing_the_iterator_stops_the_race() -> None:
    async def scene() -> None:
        visitors = Visitors(SlowHost())
        frames = visitors.watch("a", RACE)
        await frame_where(frames, racing)
        await frames.aclose()  # type: ignore[attr-defined]
        await gone(visitors)

    play(scene())


def test_a_host_that_breaks_fails_the_columns_with_its_sentence() -> None:
    async def scene() -> None:
        visitors = Visitors(BrokenHost())
        scores = [frame.board.scores[0] async for frame in visitors.watch("a", RACE)]
        assert (scores[-1].state, scores[-1].message) == ("failed", "It is broken.")
        await gone(visitors)

    play(scene())


def test_a_line_that_is_full_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MAX_WAITING", 1)

    async def scene() -> None:
        host = SlowHost()
        visitors = Visitors(host)
        inside = [visitors.watch(name, RACE) for name in "ab"]
        for frames in inside:
            await anext(frames)
        with pytest.raises(DerbyError, match="1 races are waiting"):
            await anext(visitors.watch("c", RACE))
        host.release.set()
        for frames in inside:
            await last(frames)
        await gone(visitors)

    play(scene())


def test_a_flawed_form_is_an_alert_and_starts_nothing() -> None:
    async def scene() -> None:
        host = SlowHost()
        visitors = Visitors(host)
        shown = [v async for v in Controller(visitors, Offer((), ())).race("a", {})]
        assert [list(view) for view in shown] == [["alert"]]
        assert host.races == visitors.count == 0

    play(scene())
