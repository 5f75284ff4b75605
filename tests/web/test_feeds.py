"""Feeds: whoever reads, from wherever, comes to the newest state, and nothing piles up."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streams import Reader, applied

from backend.web.feeds import Draw, Feed, Feeds, changes

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@given(JSON, JSON)
def test_changes_make_one_value_of_another(before: Any, after: Any) -> None:
    assert applied(before, json.loads(json.dumps(changes(before, after)))) == after
    assert changes(before, before) == []


@given(st.text(min_size=1), st.text(min_size=1), st.lists(st.integers(), min_size=1))
def test_what_was_sent_before_is_not_sent_again(text: str, more: str, numbers: list[int]) -> None:
    before = {"columns": [{"rounds": text}], "lines": numbers, "same": "x" * 1000}
    after = {**before, "columns": [{"rounds": text + more}], "lines": [*numbers, 7]}
    assert changes(before, after) == [
        [["columns", 0, "rounds"], "+", more],
        [["lines"], "+", [7]],
    ]


class Show:
    """Something that is shown: its states come when the test says so."""

    def __init__(self) -> None:
        self.states: asyncio.Queue[int | None] = asyncio.Queue()
        self.drawn: list[int] = []

    async def draws(self) -> AsyncIterator[Draw]:
        while (state := await self.states.get()) is not None:
            yield partial(self._draw, state)

    def _draw(self, state: int) -> dict[str, Any]:
        self.drawn.append(state)
        return {"text": "abcdefghij"[:state], "kept": "yes"}

    async def say(self, *states: int | None) -> None:
        for state in states:
            self.states.put_nowait(state)
        for _ in range(5):
            await asyncio.sleep(0)


async def read(feed: Feed, reader: Reader, count: int = -1, **how: Any) -> Reader:
    """Have the reader read so many messages, or to the end."""
    async for message in feed.read(reader.last, **how):
        if message.name != "beat":
            reader.take(message.number, message.name, message.data)
        count -= 1
        if not count:
            break
    return reader


def played(scene: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(scene(), 30))


@given(st.lists(st.sampled_from(["say", "read", "leave"]), max_size=30))
def test_a_reader_that_comes_and_goes_ends_with_the_newest_state(moves: list[str]) -> None:
    """Whatever was missed, and however often; another reader takes nothing from it."""

    async def scene() -> None:
        show, feed, reader = Show(), Feed(), Reader()
        feed.show("race", show.draws())
        reading: asyncio.Task[Reader] | None = None
        other = asyncio.create_task(read(feed, Reader()))
        state = 0
        for move in moves:
            if move == "say":
                state = min(state + 1, 10)
                await show.say(state)
            elif reading:
                reading.cancel()
                await asyncio.wait([reading])
                reading = None
            elif move == "read":
                reading = asyncio.create_task(read(feed, reader))
                await asyncio.sleep(0)
        await show.say(10, None)
        for each in (await other, await (reading or read(feed, reader))):
            assert each.views == {"race": {"text": "abcdefghij", "kept": "yes"}}

    played(scene)


def test_a_slow_reader_gets_the_newest_state_and_nothing_waits_for_it() -> None:
    """Views once piled up for whoever read a kilobyte a second, without an end."""

    async def scene() -> None:
        show, feed, reader = Show(), Feed(), Reader()
        feed.show("race", show.draws())
        await show.say(1)
        slow = feed.read()
        first = await anext(slow)
        reader.take(first.number, first.name, first.data)
        await show.say(*range(2, 10), None)
        for message in [message async for message in slow]:
            reader.take(message.number, message.name, message.data)
        assert reader.views["race"]["text"] == "abcdefghi"
        assert show.drawn == [1, 9]

    played(scene)


def test_another_kind_of_view_is_sent_whole() -> None:
    """The page put it at a place called "undefined", and a benchmark that was refused midway stood
    there as if it ran.
    """

    async def scene() -> None:
        async def draws() -> AsyncIterator[Draw]:
            yield lambda: {"phase": "running", "share": 0.5}
            await asyncio.sleep(0)
            yield lambda: {"alert": "No more today."}

        feed = Feed()
        feed.show("benchmark", draws())
        told = [message.data async for message in feed.read()]
        assert told[-1] == {"alert": "No more today."}

    played(scene)


def test_what_nobody_reads_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quiet reader is there, hears that the stream stands, and that nothing runs any more."""
    monkeypatch.setattr("backend.web.feeds.BEAT", 0.01)

    async def scene() -> None:
        show, feed = Show(), Feed()
        feed.show("race", show.draws())
        reading = asyncio.create_task(read(feed, Reader(), quiet=True))
        await show.say(1, 2)
        await asyncio.sleep(0.05)
        await show.say(None)
        assert (await reading).views == {}
        assert show.drawn == []

    played(scene)


def test_a_later_run_takes_the_place_of_an_earlier_one() -> None:
    async def scene() -> None:
        first, second, feed = Show(), Show(), Feed()
        feed.show("race", first.draws())
        await first.say(1)
        feed.show("race", second.draws())
        await first.say(2)
        await second.say(3, None)
        assert (await read(feed, Reader())).views["race"]["text"] == "abc"
        assert not feed.used

    played(scene)


def test_a_run_that_breaks_ends_for_its_readers() -> None:
    async def broken() -> AsyncIterator[Draw]:
        yield lambda: {"phase": "racing"}
        raise ValueError("a flaw of ours")

    async def scene() -> None:
        feed = Feed()
        feed.show("race", broken())
        assert (await read(feed, Reader())).views == {"race": {"phase": "racing"}}

    played(scene)


def test_as_many_feeds_are_kept_as_the_limit_says_beside_those_in_use() -> None:
    async def scene() -> None:
        show, feeds = Show(), Feeds(2)
        running = feeds.of("runs")
        running.show("race", show.draws())
        first = feeds.of("a")
        assert feeds.of("a") is first
        for name in "bcd":
            feeds.of(name)
        assert feeds.of("runs") is running
        assert feeds.of("a") is not first
        await show.say(None)

    played(scene)
