"""A race on the page, from a click on Run to its end, and one that is opened again."""

import asyncio
import base64
import gzip
import threading
import time
import zlib
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import asdict, replace
from functools import cached_property
from queue import SimpleQueue
from typing import Any

import gradio as gr

from backend.errors import DerbyError
from backend.events import Event, Finished, Preparing
from backend.export.next_step import next_step
from backend.export.production import Snippet, snippets
from backend.form import form_of, read_race
from backend.offer import Offer
from backend.racing.hosts import Host
from backend.racing.line import PERIOD, Line, Place
from backend.racing.race import Race
from backend.records.file import as_bytes
from backend.records.record import RaceRecord, recorded
from backend.results.drawing import Drawer, Drawing
from backend.results.figures import counted
from backend.results.scoreboard import ENDED

#: Characters of a prompt that stand beside its result.
MOST_PROMPT = 300

#: Bytes of a record that a browser may send, unpacked.
MOST_BYTES = 2**24


class Run:
    """A race and what has happened in it so far. `ahead`: races before it in the line; `overdue`:
    it was ended, because it took long while others waited; `over`: nothing more happens in it.
    `offer`: of what it does not offer, no code is written, which could read files.
    """

    def __init__(self, race: Race | RaceRecord, offer: Offer, number: int = 0) -> None:
        here = isinstance(race, Race)
        self.record = recorded(race.request, race.columns, race.target, ()) if here else race
        self.offer = offer
        self.board = self.record.board
        self.ahead, self.overdue, self.over = 0, False, not here
        self._drawing = threading.Lock()  # a race that is stopped may be drawn at that moment
        number = number or time.time_ns() // 1_000_000
        self._drawer = Drawer(self.board, race.request, number)
        self._events: list[Event] = []

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            self._events.append(event)
            self.board.add(event)

    def draw(self) -> Drawing:
        """The race as it is now, with what it is about; once it is over, with what to do next and
        the form that asks for it again.
        """
        record = self.record
        about = {"prompt": record.request.prompt[:MOST_PROMPT], "about": record.about}
        with self._drawing:
            drawing = self._drawer.draw() | about
        if self.ahead:
            waiting = f"{counted(self.ahead, 'race')} ahead of yours: it begins by itself."
            return drawing | {"phase": "waiting", "status": waiting}
        if not self.over:
            return drawing
        form = form_of(record.request, record.columns, record.target)
        return drawing | {"form": form, "next": asdict(next_step(self.board, self.snippets))}

    def end(self) -> Drawing:
        """The last drawing, with the record. Columns that still run end here."""
        self.over, self.ahead = True, 0
        running = (i for i, score in enumerate(self.board.scores) if score.state not in ENDED)
        self.add([Finished(column, "stopped", []) for column in running])
        events = (event for event in self._events if not isinstance(event, Preparing))
        self.record = replace(self.record, events=tuple(events))
        return self.draw() | {"record": packed(as_bytes(self.record))}

    @cached_property
    def snippets(self) -> dict[int, dict[str, Snippet]]:
        """The code of its columns once it is over; see `snippets`. None of a race with what is not
        offered here: a record could name files.
        """
        record = self.record
        try:
            self.offer.require_model(record.target.name)
            for column in record.columns:
                self.offer.require_column(column, record.target)
        except DerbyError:
            return {}
        return snippets(self.board, record.request, record.target)


async def running(
    host: Host, place: Place, race: Race, run: Run, seconds: float
) -> AsyncGenerator[None, None]:
    """Wait for the turn, then run the race and add its events to `run`, yielding some times a
    second. It ends early with this iterator, or after so many seconds of its turn if others wait.
    """
    async for ahead in place.ahead():
        run.ahead = ahead
        yield
    run.ahead = 0
    events: SimpleQueue[Event | None] = SimpleQueue()
    closed = threading.Event()

    def stopped() -> bool:
        run.overdue |= place.overdue(seconds)
        return run.overdue or closed.is_set()

    def drain() -> None:
        try:
            host.run(race, events.put, stopped)
        finally:
            events.put(None)

    threading.Thread(target=drain, name="events", daemon=True).start()
    try:
        ended = False
        while not ended:
            await asyncio.sleep(PERIOD)
            new = [events.get_nowait() for _ in range(events.qsize())]
            ended = None in new
            run.add(event for event in new if event is not None)
            yield
    finally:
        closed.set()


async def drawn(
    host: Host, line: Line, offer: Offer, form: Mapping[str, Any], guest: str
) -> AsyncGenerator[tuple[Drawing, Run], None]:
    """The race that a form asks for, drawn again and again until it has ended; `Run.end` draws the
    end of one whose iterator is closed. Raises DerbyError for what the visitor can mend.
    """
    race, seconds = read_race(form, offer), offer.limits.seconds
    run = Run(race, offer)
    with line.place(guest) as place:
        yield run.draw(), run
        async with aclosing(running(host, place, race, run, seconds)) as steps:
            async for _ in steps:
                yield await asyncio.to_thread(run.draw), run
    yield await asyncio.to_thread(run.end), run
    if run.overdue:
        gr.Info(f"Others wait, so your race ended after {seconds} seconds.")
    messages = {score.message for score in run.board.scores}
    if len(messages) == 1 and (message := messages.pop()):
        raise DerbyError(message)


def packed(record: bytes) -> str:
    """A record as browsers keep and send it: a tenth as long."""
    return base64.b64encode(gzip.compress(record, 6, mtime=0)).decode()


def unpacked(text: str) -> bytes:
    """What was packed. Raises DerbyError for anything else."""
    if not text:
        raise DerbyError("The browser had no room for this race: save such races as files.")
    try:
        file = zlib.decompressobj(wbits=31)  # of gzip
        data = file.decompress(base64.b64decode(text, validate=True), MOST_BYTES + 1)
    except (ValueError, zlib.error) as error:
        raise DerbyError("This is not a record of a race: save it again.") from error
    if len(data) > MOST_BYTES:
        raise DerbyError(
            f"The record has more than {MOST_BYTES:,} bytes, the most that the page opens: "
            "replay it in a terminal."
        )
    return data
