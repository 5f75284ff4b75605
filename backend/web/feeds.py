"""Numbered messages about what runs for a visitor. Each of the visitor's pages reads them at its
own pace.

Only the newest state of each thing is kept, and it is drawn when somebody reads it. A reader first
gets the whole state, then only the changes. A reader that was away or is slow gets the newest
state.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from backend.errors import explain
from backend.web.view import View

#: Seconds of silence after which a reader is told that the stream stands.
BEAT = 15.0

#: Makes the newest view of something that is shown.
Draw = Callable[[], View]


@dataclass(frozen=True, slots=True)
class Message:
    """News of the view called `name`: the whole view, or what has changed since the last message
    (see `changes`). Later messages have higher numbers, even after a restart of the server.
    """

    number: int
    name: str
    data: Any = None


class _State:
    """The newest state of something; its view is made once, when it is read first."""

    def __init__(self, number: int, draw: Draw) -> None:
        self.number = number
        self._draw: Draw | None = draw
        self._view = View()

    @property
    def view(self) -> View:
        if self._draw is not None:
            self._view, self._draw = self._draw(), None
        return self._view


class Feed:
    """What is shown to one visitor. For the tasks of one event loop."""

    def __init__(self) -> None:
        self._newest = time.time_ns() // 1_000
        self._states: dict[str, _State] = {}  # the newest one last
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._readers = 0

    @property
    def used(self) -> bool:
        """Whether something runs or is read."""
        return bool(self._tasks or self._readers)

    def runs(self, name: str) -> bool:
        return name in self._tasks

    def show(self, name: str, draws: AsyncIterator[Draw]) -> None:
        """Show these states until they end, whether or not anybody reads. They replace an earlier
        run of that name.
        """
        if earlier := self._tasks.get(name):
            earlier.cancel()
        self._tasks[name] = asyncio.create_task(self._run(name, draws))

    async def _run(self, name: str, draws: AsyncIterator[Draw]) -> None:
        try:
            async for draw in draws:
                self._states.pop(name, None)
                self._newest += 1
                self._states[name] = _State(self._newest, draw)
                self._wake()
        except Exception as error:
            explain(error)  # what runs tells its own errors: this one is ours
        finally:
            if self._tasks.get(name) is asyncio.current_task():
                del self._tasks[name]
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def read(self, after: int = 0, *, quiet: bool = False) -> AsyncIterator[Message]:
        """Yield the messages after number `after`, then new ones until nothing runs any more. After
        a long silence, "beat" is sent. A `quiet` reader gets only the beats and the end.
        """
        if after > self._newest:
            after = 0  # no number of ours
        sent = {name: state for name, state in self._states.items() if state.number <= after}
        self._readers += 1
        try:
            while True:
                changed = self._changed
                for name, state in [] if quiet else list(self._states.items()):
                    if state.number <= after:
                        continue
                    after = state.number
                    view, before = state.view, sent[name].view if name in sent else View()
                    sent[name] = state
                    # A view with other keys is sent whole: there is no place in it to change.
                    known = before.keys() == view.keys()
                    yield Message(after, name, changes(before, view) if known else view)
                if changed is not self._changed:
                    continue  # something came while the reader took the last message
                if not self._tasks:
                    return
                try:
                    await asyncio.wait_for(changed.wait(), BEAT)
                except TimeoutError:
                    yield Message(after, "beat")
        finally:
            self._readers -= 1


class Feeds:
    """The feeds of a page's visitors: all feeds in use, and the `most` others that were
    used last.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._feeds: OrderedDict[str, Feed] = OrderedDict()  # the latest one last

    def of(self, visitor: str) -> Feed:
        feed = self._feeds.setdefault(visitor, Feed())
        self._feeds.move_to_end(visitor)
        if len(self._feeds) > self._most:
            for other in [name for name, each in list(self._feeds.items()) if not each.used]:
                if len(self._feeds) <= self._most or other == visitor:
                    break
                del self._feeds[other]
        return feed

    def forget(self, visitor: str) -> None:
        """Drop the feed of a visitor who has gone. Thread-safe."""
        self._feeds.pop(visitor, None)


def changes(before: Any, after: Any, path: Sequence[str | int] = ()) -> list[list[Any]]:
    """How JSON value `before` becomes `after`, each as [path, sign, value]: at the path, "+"
    appends to a text or a list, "=" puts the value in the place of what is there.
    """
    if before == after:
        return []
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        pairs = [(key, before[key], after[key]) for key in after]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = [(i, *both) for i, both in enumerate(zip(before, after, strict=True))]
    elif before and isinstance(before, str | list) and _begins(after, before):
        return [[list(path), "+", after[len(before) :]]]
    else:
        return [[list(path), "=", after]]
    return [each for key, old, new in pairs for each in changes(old, new, (*path, key))]


def _begins(whole: Any, part: str | list[Any]) -> bool:
    return type(whole) is type(part) and whole[: len(part)] == part
