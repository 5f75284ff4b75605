"""A race on the page, drawn again and again from a click on Run."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import cache
from math import inf
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import gradio as gr

from backend.errors import DerbyError
from backend.events import Event, Finished
from backend.export.tables import files_of
from backend.form import read_race
from backend.offer import Offer
from backend.racing.hosts import Host
from backend.racing.race import Race
from backend.records.file import load
from backend.records.record import RaceRecord, recorded
from backend.results.drawing import Drawer, Drawing
from backend.results.scoreboard import ENDED, Scoreboard

#: Seconds between two looks at what has happened.
PERIOD = 0.25

#: The first example's race, as `race --record` writes it.
OPENING = Path(__file__).resolve().parent.parent / "assets" / "opening.json"


async def events_of(
    host: Host,
    race: Race,
    stopped: Callable[[], bool] = lambda: False,
    most: float = inf,
) -> AsyncGenerator[list[Event], None]:
    """What a race's events were, four times a second, until it has ended. It ends with
    the pass of `stopped()`, of this iterator's own end, and `most` seconds after its first event.
    """
    events: SimpleQueue[Event | None] = SimpleQueue()
    closed = threading.Event()

    def drain() -> None:
        try:
            host.run(race, events.put, lambda: closed.is_set() or stopped())
        finally:
            events.put(None)

    threading.Thread(target=drain, name="events", daemon=True).start()
    try:
        ended, begun = False, inf
        while not ended:
            await asyncio.sleep(PERIOD)
            if time.monotonic() - begun > most:
                closed.set()
            new = [events.get_nowait() for _ in range(events.qsize())]
            ended = None in new
            begun = min(begun, time.monotonic()) if new else begun
            yield [event for event in new if event is not None]
    finally:
        closed.set()


class Run:
    """A race and what has happened in it so far."""

    def __init__(self, race: Race | RaceRecord, form: Mapping[str, Any]) -> None:
        self.race, self.form = race, form
        self.board = Scoreboard(race.columns)
        self.over = self.late = False
        self._drawing = threading.Lock()  # a race that is stopped may be drawn at that moment
        self.begun = time.monotonic()
        self._drawer = Drawer(self.board, race.request, time.time_ns() // 1_000_000)
        self._events: list[Event] = []

    def add(self, events: Sequence[Event]) -> None:
        self._events += events
        for event in events:
            self.board.add(event)

    def draw(self) -> Drawing:
        with self._drawing:
            return self._drawer.draw()

    def end(self) -> Drawing:
        """The last drawing, with the race's files and form. Columns that still run end here."""
        self.over = True
        running = (i for i, score in enumerate(self.board.scores) if score.state not in ENDED)
        self.add([Finished(column, "stopped", []) for column in running])
        race = self.race
        record = recorded(race.request, race.columns, race.target, self._events)
        return self.draw() | {"files": files_of(record), "form": dict(self.form)}


async def race(
    host: Host,
    offer: Offer,
    form: Mapping[str, Any],
    others_wait: Callable[[], bool],
) -> AsyncGenerator[tuple[Drawing, Run], None]:
    """The race that a form asks for, drawn again and again until it has ended or this iterator is
    closed; `Run.end` draws the end. Where others wait, it ends after the limit's seconds. Raises
    DerbyError for what the visitor can mend.
    """
    command, limit = read_race(form, offer), offer.limits.seconds
    run = Run(command, form)

    def late() -> bool:
        run.late |= time.monotonic() - run.begun > limit and others_wait()
        return run.late

    yield run.draw(), run
    async with aclosing(events_of(host, command, late)) as batches:
        async for events in batches:
            run.add(events)
            yield await asyncio.to_thread(run.draw), run
    if run.late:
        gr.Info(f"Others wait, so your race ended after {limit} seconds.")
    messages = {score.message for score in run.board.scores}
    if len(messages) == 1 and (message := messages.pop()):
        raise DerbyError(message)


@cache
def opening() -> Run:
    """The race that a page opens with."""
    record = load(OPENING)
    run = Run(record, {})
    run.add(record.events)
    run.over = True
    return run
