"""The line of visitors: nobody overtakes, nobody blocks it, nothing is left behind."""

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import replace

import pytest
from clock import Clock

from backend.errors import DerbyError
from backend.events import Event, Finished, Started
from backend.limits import PRIVATE, Limits
from backend.racing.commands import Command, ForgetVisitor
from backend.racing.hosts.inline import InlineHost
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import default_column, parse_column
from backend.types import ModelSpec, Request
from backend.web.presence import Presence
from backend.web.view import view
from backend.web.visitors import BOARDS, GRACE, Frame, Visitors
from page.identity import session_of, visitor_of

RACE = Race(Request("Hi"), (default_column("kv"),), ModelSpec("fake", "fake"))


class SlowHost:
    """Its races end when they are stopped, or when the test lets all of them end."""

    preparing = ""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.running = 0
        self.most = 0
        self.races = 0
        self.prompts: list[str] = []
        self.scopes: list[str] = []
        self.forgotten: list[str] = []

    def stream(self, command: Command, stopped: Callable[[], bool]) -> Iterator[Event]:
        if isinstance(command, ForgetVisitor):
            self.forgotten.append(command.visitor)
            return
        if isinstance(command, Race):
            self.prompts.append(command.request.prompt)
            self.scopes.append(command.visitor)
        self.running += 1
        self.races += 1
        self.most = max(self.most, self.running)
        yield Started(0, 1, "m")
        while not (stopped() or self.release.wait(0.01)):
            pass
        self.running -= 1
        yield Finished(0, "stopped" if stopped() else "end of text", [])

    def close(self) -> None: ...


async def frame_where(frames: AsyncIterator[Frame], test: Callable[[Frame], bool]) -> Frame:
    async for frame in frames:
        if test(frame):
            return frame
    raise AssertionError("the race ended before that")


def racing(frame: Frame) -> bool:
    return frame.board.scores[0].state == "prefill"


class Street:
    """Visitors who come, go, and ask for races, and the time that passes meanwhile."""

    def __init__(
        self, limits: Limits = PRIVATE, here: Iterable[str] = "", *, by_address: bool = False
    ) -> None:
        self.clock = Clock()
        self.host = SlowHost()
        self.presence = Presence(self.clock, by_address=by_address)
        self.forgotten: list[str] = []
        self.visitors = Visitors(self.host, limits, self.presence)
        self.visitors.leavers.append(self.forgotten.append)
        for name in here:
            self.presence.opened(name)

    def wait(self, seconds: float) -> None:
        self.clock.time += seconds
        self.visitors.sweep()

    async def race(self, name: str) -> AsyncIterator[Frame]:
        """The visitor's race, once it runs if nobody is in front, and once it waits otherwise."""
        frames = self.visitors.watch(name, RACE)
        await frame_where(frames, lambda frame: frame.ahead > 0 or racing(frame))
        return frames


async def end(frames: AsyncIterator[Frame]) -> tuple[str, str]:
    """Why the race ended: its first column's reason, and the note."""
    told = [(frame.board.scores[0].reason, frame.note) async for frame in frames]
    return told[-1]


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


def test_a_race_goes_on_without_its_reader_and_can_be_looked_at_again() -> None:
    """A connection that was lost for two seconds once ended the race: closing the iterator did."""

    async def scene() -> None:
        host = SlowHost()
        visitors = Visitors(host)
        frames = visitors.watch("a", RACE)
        first = await frame_where(frames, racing)
        await frames.aclose()  # type: ignore[attr-defined]
        again = visitors.look("a")
        assert (again.number, again.board) == (first.number, first.board)
        host.release.set()
        while not visitors.look("a").board.ended:
            await asyncio.sleep(0.01)
        assert visitors.look("a").board.scores[0].reason == "end of text"
        with pytest.raises(DerbyError, match="no longer in memory"):
            visitors.look("b")

    play(scene())


def test_who_runs_a_race_again_is_told_how_it_came_out_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One example was 1.27 times as fast (1.22-1.32) and a minute later 1.59 times (1.53-1.66): an
    interval is of one race, and the next one found the machine in another state.
    """
    monkeypatch.setattr(Scoreboard, "noisy", False)  # whatever else this machine does
    columns = tuple(map(parse_column, ("kv", "lookup")))
    race = Race(Request("Again and again and again. ", 24, chat=False), columns, RACE.target)

    async def scene() -> None:
        visitors = Visitors(InlineHost())

        async def run(race: Race) -> Frame:
            *_, frame = [frame async for frame in visitors.watch("a", race)]
            return frame

        frames = [await run(race) for _ in range(3)]
        assert [len(frame.before) for frame in frames] == [0, 1, 2]
        first, second, third = frames
        assert third.before == (*second.before, tuple(map(second.board.speedup, range(2))))
        assert second.before == (tuple(map(first.board.speedup, range(2))),)
        other = replace(race, request=replace(race.request, max_new_tokens=20))
        assert (await run(other)).before == (), "it is another race"
        assert (await run(race)).before == (), "only of the last race is anything kept"

    play(scene())


def test_the_end_of_a_race_is_shown_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was shown up to half a second late: at the second of two looks, a quarter of a second
    each.
    """
    for period in ("PERIOD", "WAITING_PERIOD"):
        monkeypatch.setattr(f"backend.web.visitors.{period}", 3600.0)

    async def scene() -> None:
        host = SlowHost()
        visitors = Visitors(host)
        frames = visitors.watch("a", RACE)
        await anext(frames)
        waiting = visitors.watch("b", RACE)
        await anext(waiting)
        measured = asyncio.create_task(visitors.measure("c", replace(RACE, visitor="c")))
        while host.races < 1:
            await asyncio.sleep(0.01)
        host.release.set()
        assert await last(frames) == "end of text"
        assert await last(waiting) == "end of text"
        assert (await measured).scores[0].reason == "end of text"

    play(scene())


def test_a_race_is_carried_out_in_the_context_of_the_request_that_asked_for_it() -> None:
    """Who lends a GPU asks for whom, on the one thread that carries out everybody's races."""
    asking: ContextVar[str] = ContextVar("asking", default="nobody")
    served = []

    class Asked(SlowHost):
        def stream(self, command: Command, stopped: Callable[[], bool]) -> Iterator[Event]:
            served.append(asking.get())
            yield from super().stream(command, stopped)

    async def main() -> None:
        visitors = Visitors(host)

        async def visit(name: str) -> None:
            asking.set(name)
            async for _ in visitors.watch(name, RACE):
                pass

        await asyncio.gather(visit("a"), visit("b"))

    host = Asked()
    host.release.set()
    asyncio.run(main())
    assert sorted(served) == ["a", "b"]


def test_a_race_in_line_is_dropped_once_its_page_has_no_connection_for_ten_seconds() -> None:
    """A hundred bare requests once filled the line, and each of their races was run."""

    async def scene() -> None:
        street = Street(here="abc")
        running = await street.race("a")
        gone, never, brief = [await street.race(name) for name in "bxc"]
        street.presence.closed("b")
        street.presence.closed("c")
        street.wait(GRACE - 1)
        assert street.visitors.count == 4
        street.presence.opened("c")
        street.wait(1)
        for frames in (gone, never):
            reason, note = await end(frames)
            assert reason == "stopped"
            assert "no connection for 10 s" in note
        assert street.host.races == 1
        street.host.release.set()
        assert await end(running) == ("end of text", "")
        assert await end(brief) == ("end of text", "")

    play(scene())


def test_a_running_race_without_a_connection_ends_only_if_others_wait() -> None:
    async def scene() -> None:
        street = Street(here="ab")
        running = await street.race("a")
        street.presence.closed("a")
        street.wait(GRACE)
        bare = await street.race("x")  # nobody who counts
        street.wait(1)
        assert street.visitors.count == 2
        other = await street.race("b")
        street.wait(0)
        reason, note = await end(running)
        assert reason == "stopped"
        assert "no connection for 10 s and others wait" in note
        street.host.release.set()
        assert await end(other) == ("end of text", "")
        street.wait(GRACE)
        assert (await end(bare))[0] == "stopped"
        assert street.visitors.look("a").note == note

    play(scene())


def test_a_long_race_ends_once_others_wait_and_says_what_is_kept() -> None:
    """A race of twelve columns of 8,192 tokens once had the machine for as long as it took."""

    async def scene() -> None:
        street = Street(Limits(race_seconds=120), here="ab")
        running = await street.race("a")
        street.wait(1000)
        other = await street.race("b")
        street.wait(0)
        reason, note = await end(running)
        assert reason == "stopped"
        assert "stopped after 120 s because others wait" in note
        street.host.release.set()
        assert await end(other) == ("end of text", "")
        assert street.visitors.last("a")[0].request == RACE.request

    play(scene())


def test_a_full_line_has_room_for_whoever_has_a_page() -> None:
    """Places of requests that no page stands behind are given up first, the latest of them."""

    async def scene() -> None:
        street = Street(Limits(waiting=2), here="abcd")
        running = await street.race("a")
        early, late = await street.race("x"), await street.race("y")
        second, third = await street.race("b"), await street.race("c")
        for frames in (late, early):
            assert "removed from the full queue" in (await end(frames))[1]
        with pytest.raises(DerbyError, match="2 races are waiting"):
            await anext(street.visitors.watch("d", RACE))
        street.host.release.set()
        for frames in (running, second, third):
            assert await end(frames) == ("end of text", "")

    play(scene())


def test_a_visitor_begins_so_many_races_an_hour_and_no_more() -> None:
    async def scene() -> None:
        street = Street(Limits(races_per_hour=2), here="ab")
        street.host.release.set()
        for _ in range(2):
            await end(street.visitors.watch("a", RACE))
        with pytest.raises(DerbyError, match=r"2 are allowed: the next one is possible in 60 min"):
            await anext(street.visitors.watch("a", RACE))
        await end(street.visitors.watch("b", RACE))
        street.clock.time += 3600
        await end(street.visitors.watch("a", RACE))

    play(scene())


def test_who_is_absent_for_long_is_forgotten_with_their_caches() -> None:
    """A visitor's last race was kept until gradio noticed that the page was closed, for ever
    if it never had one: 400 requests with long prompts took 310 MB, and kept them.
    """

    async def scene() -> None:
        street = Street(Limits(absence_seconds=300), here="ab")
        street.host.release.set()
        for name in "abx":
            with street.presence.there(name, page=False):
                await end(street.visitors.watch(name, RACE))
        street.presence.closed("a")
        street.wait(100)
        street.visitors.seen("a")  # a page that lost its connection asks again
        street.visitors.seen("x")
        street.wait(299)
        assert street.visitors.last("a")[1].ended
        street.wait(1)
        for name in "ax":
            with pytest.raises(DerbyError, match="no longer in memory"):
                street.visitors.look(name)
        assert street.visitors.look("b").board.ended
        while len(street.host.forgotten) < 2:
            await asyncio.sleep(0.01)
        assert street.host.forgotten == [street.host.scopes[i] for i in (0, 2)]

    play(scene())


class ForgetfulHost(InlineHost):
    """Loses what it is told to forget, as a host whose worker died just then."""

    def stream(self, command: Command, stopped: Callable[[], bool]) -> Iterator[Event]:
        return iter(()) if isinstance(command, ForgetVisitor) else super().stream(command, stopped)


def test_who_takes_the_name_of_one_who_left_finds_none_of_their_caches() -> None:
    """The caches stood under the visitor's name: whoever had learnt it raced on with what a lost
    command to forget them had left.
    """
    race = replace(RACE, columns=(parse_column("kv:cache=session"),))

    async def scene() -> None:
        visitors = Visitors(ForgetfulHost())

        async def reused(name: str) -> int:
            frames = [frame async for frame in visitors.watch(name, race)]
            return frames[-1].board.scores[0].reused

        assert await reused("a") == 0
        assert await reused("a") > 0
        visitors.leave("a")
        assert await reused("a") == 0
        assert await reused("b") == 0

    play(scene())


def test_two_hundred_are_served_in_the_order_they_came() -> None:
    async def scene() -> None:
        host = SlowHost()
        visitors = Visitors(host, Limits(waiting=200, visitors=200))
        names = [f"visitor {number}" for number in range(200)]

        async def visit(name: str) -> None:
            race = replace(RACE, request=Request(name))
            async for frame in visitors.watch(name, race):
                assert frame.race.request.prompt == name

        asked = threading.active_count()
        running = visitors.watch("first", RACE)
        await frame_where(running, racing)
        visits = [asyncio.create_task(visit(name)) for name in names]
        while visitors.count < 201:
            await asyncio.sleep(0.01)
        assert threading.active_count() <= asked + 2  # one carries out, and not one a visitor
        host.release.set()
        await asyncio.gather(last(running), *visits)
        assert host.most == 1
        assert host.prompts == ["Hi", *names]
        await gone(visitors)

    play(scene())


def test_forty_sessions_of_one_browser_take_one_place() -> None:
    """One cookie once took 33 places: all its sessions are one visitor, whose new race ends the
    last one.
    """
    names = {visitor_of(session_of("c" * 43, f"tab {number}")) for number in range(40)}
    assert len(names) == 1

    async def scene() -> None:
        street = Street(here=["a", "honest", *names])
        await street.race("a")
        await street.race("honest")
        for name in [*names] * 40:
            await street.race(name)
            assert street.visitors.waiting == 2
        assert street.visitors.look("honest").ahead == 1
        street.host.release.set()
        await gone(street.visitors)

    play(scene())


def test_an_address_has_few_places_and_lets_others_go_between() -> None:
    """Whoever dropped the cookie for each race was as many visitors, and all of them went first."""

    async def scene() -> None:
        street = Street(replace(PRIVATE, waiting_per_address=3), by_address=True)
        places = {"a": "1.1.1.1", "b1": "2.2.2.2", "b2": "2.2.2.2", "b3": "2.2.2.2"}
        places |= {"b4": "2.2.2.2", "c": "3.3.3.3", "d": ""}
        for name, place in places.items():
            street.presence.opened(name, address=place)
        await street.race("a")
        for name in ("b1", "b2", "b3", "c", "d"):
            street.clock.time += 1
            await street.race(name)
        with pytest.raises(DerbyError, match="3 races of your address are waiting already"):
            await street.race("b4")
        assert [street.visitors.look(name).ahead for name in ("b1", "b2", "c", "d")] == [1, 2, 4, 5]
        street.clock.time += 1
        street.visitors.stop("a")  # now it is the turn of the first of three
        while street.host.races < 2:
            await asyncio.sleep(0.01)
        shown = [street.visitors.look(name).ahead for name in ("c", "d", "b2", "b3")]
        assert shown == [1, 2, 3, 4]
        street.host.release.set()
        await gone(street.visitors)

    play(scene())


def test_a_race_begins_once_its_visitor_listens() -> None:
    """Ten races whose cookies were dropped at once kept a visitor waiting for three times as long
    as usual.
    """

    async def scene() -> None:
        street = Street()
        street.visitors.begin("nobody", RACE)
        street.visitors.begin("late", RACE)
        assert street.host.races == 0
        street.presence.opened("here")
        first = await street.race("here")
        street.clock.time += 1
        street.presence.opened("late")  # a stream that follows its race
        assert [street.visitors.look(name).ahead for name in ("nobody", "late")] == [1, 2]
        street.host.release.set()
        assert await end(first) == ("end of text", "")
        assert await end(street.visitors.follow("late")) == ("end of text", "")
        assert street.visitors.count == 1
        with street.presence.there("nobody", page=False):  # a call that lasts
            street.wait(0)
            assert await end(street.visitors.follow("nobody")) == ("end of text", "")

    play(scene())


def test_a_race_that_many_others_follow_is_shown_as_it_was() -> None:
    """All boards were once kept, with every step: 200 visitors' long races took gigabytes."""

    def seen(board: Scoreboard) -> object:
        return view(board, race=0, goal=0)

    async def scene() -> None:
        visitors = Visitors(InlineHost())
        race = replace(RACE, columns=(default_column("kv"), default_column("lookup")))
        await last(visitors.watch("first", race))
        board = visitors.look("first").board
        before = seen(board)
        found = weakref.ref(board)
        del board
        for number in range(BOARDS):
            await last(visitors.watch(f"v{number}", RACE))
        gc.collect()
        assert found() is None
        board = visitors.look("first").board
        assert seen(board) == before

    play(scene())


def test_a_board_that_cannot_take_an_event_ends_the_race_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The race was over, but its board never ended: the page asked on and on, and its visitor
    could not go on with anything.
    """

    def broken(_: Scoreboard, event: Event) -> None:
        raise ValueError(event)

    async def scene() -> None:
        street = Street(here="a")
        monkeypatch.setattr(Scoreboard, "add", broken)
        frames = [frame async for frame in street.visitors.watch("a", RACE)]
        [score] = frames[-1].board.scores
        assert frames[-1].over
        assert (score.state, "reference" in score.message) == ("failed", True)
        assert street.visitors.last("a")[1].ended
        await gone(street.visitors)

    play(scene())
