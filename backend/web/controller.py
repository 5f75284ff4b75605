"""The page's requests arrive here: forms are read, races begin, and their views are shown."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from backend.errors import DerbyError, explain
from backend.export.production import Snippet, snippet, usual, usual_library
from backend.racing.commands import Command, Measure
from backend.racing.race import Race
from backend.records.record import RaceRecord, recorded
from backend.records.record import board as board_of
from backend.results.scoreboard import Scoreboard
from backend.results.steps import first_differences, step_view
from backend.results.track import goal_of
from backend.web.examples import opening
from backend.web.export import about, file_of, read_record
from backend.web.feeds import Draw, Feeds
from backend.web.form import Values, read_race, wants_measuring
from backend.web.lineup import Lineup
from backend.web.link import form_of, link, settings_of
from backend.web.offer import Offer
from backend.web.opened import OpenedRaces
from backend.web.view import View, alert, begun, preparing, recorded_view, view
from backend.web.visitors import PERIOD, Frame, Visitors

#: Characters of a record that a browser keeps at most: its storage holds some five million.
KEPT = 1 << 20


class Controller:
    """Serves the visitors of one page. Nothing that they send is trusted. What runs for them is
    shown in their `feeds`.
    """

    def __init__(
        self,
        visitors: Visitors,
        offer: Offer,
    ) -> None:
        self._visitors = visitors
        self._offer = offer
        self.feeds = Feeds(offer.limits.visitors)
        self._opened = OpenedRaces(offer.limits.visitors)
        self.leavers = visitors.leavers  # what else forgets a visitor who is gone
        self.leavers += [self.feeds.forget, self._opened.forget]

    async def race(self, visitor: str, values: Values) -> View:
        """Begin the race that the form asks for.

        This method and the next two return what tells the page that a race has begun, or an alert.
        After an alert, the visitor's earlier race goes on.
        """

        def requested() -> tuple[Race, Sequence[Command]]:
            race = read_race(values, self._offer)
            measure = wants_measuring(values)
            return race, [Measure(race.columns, race.target)] if measure else []

        return await self._begin(visitor, requested)

    async def again(self, visitor: str) -> View:
        """Begin the visitor's last race once more, with the same settings and seed."""
        return await self._begin(visitor, lambda: (self._visitors.last(visitor)[0], ()))

    def on_show(self, visitor: str) -> tuple[list[str], str | None]:
        """The columns of the race on show, as they may be named here, and the one whose code is the
        fastest; none while it runs. Not for the event loop.
        """
        try:
            race, board = self._race_on_show(visitor)
        except DerbyError:
            return [], None
        names = [self._offer.public(column.label) for column in race.columns]
        return names, names[usual(board, race.request, race.target)]

    def production(self, visitor: str, label: Any, library: Any) -> Snippet:
        """How `library` does what the column `label` of the race on show did, with its settings. Of
        an error, no code and one sentence. Not for the event loop.
        """
        public = self._offer.public
        try:
            race, board = self._race_on_show(visitor)
            index = _index(board, label, public)
            return snippet(board, index, race.request, race.target, library, public)
        except Exception as error:
            return Snippet("", "python", "", public(explain(error)))

    def library(self, visitor: str, label: Any, wanted: Any) -> Any:
        """The library `wanted`, or if it has no code for the column `label` of the race on show,
        one to begin with. Not for the event loop.
        """
        if self.production(visitor, label, wanted).code:
            return wanted
        try:
            race, board = self._race_on_show(visitor)
            index = _index(board, label, self._offer.public)
        except DerbyError:
            return wanted
        return usual_library(board, index, race.request, race.target) or wanted

    def with_code(self, visitor: str, lineup: str, label: Any, library: Any) -> str:
        """The line-up with one column more, which runs the library's code for the column `label` of
        the race on show. Raises DerbyError where that cannot be. Not for the event loop.
        """
        column = self.production(visitor, label, library).column
        if column is None:
            raise DerbyError("There is no code to race: choose another column or library.")
        added = f"{lineup.rstrip()}\n{column.named(self._offer.written)}"
        Lineup.read(added, self._offer)
        return added

    def _race_on_show(self, visitor: str) -> tuple[Race | RaceRecord, Scoreboard]:
        """The race that the visitor's page shows, and its board. Slow."""
        new = not (self._opened.number(visitor) or self._visitors.number(visitor))
        opened = self._opened_on_show(visitor, {"race": 0} if new else {})
        return (opened, board_of(opened)) if opened else self._visitors.last(visitor)

    def export(self, visitor: str, asked: Any) -> View:
        """The race on show, of the number that is asked for, as a file to be saved, or as what a
        browser keeps of it in its list: where the whole is too long, no "record". Of an error, a
        sentence. Not for the event loop.
        """
        wanted: dict[str, Any] = asked if isinstance(asked, dict) else {}
        form = str(wanted.get("form"))
        try:
            opened = self._opened_on_show(visitor, wanted)
            record = opened or self._visitors.record(visitor).published(self._offer.public)
            if form == "kept":
                text = file_of(record, "json")[2]
                kept = text if len(text) <= min(KEPT, self._offer.limits.request_bytes // 2) else ""
                race = {"id": wanted.get("race"), "record": kept, "link": _link(record)}
                return {"form": form, "kept": race | about(record)}
            return {"form": form, "file": list(file_of(record, form))}
        except Exception as error:
            return {"form": form, "note": self._offer.public(explain(error))}

    def _opened_on_show(self, visitor: str, asked: Mapping[str, Any]) -> RaceRecord | None:
        """The record that the visitor's page shows: one that they opened, or number 0, which it
        opens with; None: their last race is on show. Of a page that does not say what it shows:
        what came last. Raises DerbyError for a race that is not kept.
        """
        if asked.get("race") == 0:
            return opening()
        number, last = self._opened.number(visitor), self._visitors.number(visitor)
        shown = asked.get("race", max(number, last))
        if shown not in (number, last):
            raise DerbyError("This race is no longer in memory: run it again, or open it again.")
        return self._opened.record(visitor) if shown == number else None

    def open(self, visitor: str, text: Any) -> tuple[Values, View]:
        """The form and the view of a race that a record's text holds. Not for the event loop.
        Raises DerbyError for what is none.
        """
        record = read_record(text).published(self._offer.public)
        shown: View = {**recorded_view(record), "link": _link(record)}
        self._opened.keep(visitor, shown["race"], record)
        settings = settings_of(record.request, record.columns, record.target)
        return form_of(settings, self._offer), shown

    def inspect(self, visitor: str, asked: Any) -> View:
        """The inside of a step of the race on show, which may still run: of the race's number,
        column and moment that are asked for, or where a column first differs. Not for the event
        loop.
        """
        try:
            opened = self._opened_on_show(visitor, asked if isinstance(asked, dict) else {})
            made = board_of(opened) if opened else self._visitors.look(visitor).board
            column, index = _moment(made, asked)
            return {**step_view(made, column, index), "at": [column, index]}
        except Exception as error:
            return {"note": self._offer.public(explain(error))}

    def show_preparation(self, visitor: str) -> None:
        """Show the visitor what is still being prepared before there can be a race, if anything
        is, until nothing is.
        """
        feed = self.feeds.of(visitor)
        if self._visitors.preparing and not feed.runs("preparing"):
            feed.show("preparing", self._preparation())

    async def _preparation(self) -> AsyncIterator[Draw]:
        text = said = ""
        while True:
            text = self._offer.public(self._visitors.preparing)
            if text != said:
                yield partial(preparing, text)
            if not text:
                return
            said = text
            await asyncio.sleep(PERIOD)

    def stop(self, visitor: str) -> None:
        """End what runs for the visitor."""
        self._visitors.stop(visitor)

    def seen(self, visitor: str) -> None:
        """Note that the visitor's page is open, even if it has no connection."""
        self._visitors.seen(visitor)

    async def _begin(
        self, visitor: str, make: Callable[[], tuple[Race, Sequence[Command]]]
    ) -> View:
        """Begin a race after its commands, and show it to the visitor."""
        self.seen(visitor)
        try:
            race, before = await asyncio.to_thread(make)  # the page does not wait meanwhile
            self._visitors.begin(visitor, race, before)
            record = recorded(race.request, race.columns, race.target, ())
            address = _link(record.published(self._offer.public))
            frames = self._visitors.follow(visitor)
            self.feeds.of(visitor).show("race", self._draws(frames, address))
            return begun(self._visitors.number(visitor))
        except Exception as error:
            return alert(self._offer.public(explain(error)))

    async def _draws(self, frames: AsyncIterator[Frame], address: str) -> AsyncIterator[Draw]:
        """How to draw these frames of a race. `address`: the query with its settings."""
        async for frame in frames:
            yield partial(self._drawn, frame, address)

    def _drawn(self, frame: Frame, address: str) -> View:
        race = frame.race
        shown = view(
            frame.board,
            race=frame.number,
            goal=goal_of(race.request),
            ahead=frame.ahead,
            before=frame.before,
            public=self._offer.public,
        )
        told = {name: f"{frame.note} {shown[name]}".strip() for name in ("status", "top")}
        return {**shown, **told, "link": address}


def _link(record: RaceRecord) -> str:
    """The query of an address at which this race can be run again."""
    return link(settings_of(record.request, record.columns, record.target))


def _moment(board: Scoreboard, asked: Any) -> tuple[int, int]:
    """The column and the moment that a page asks for. Raises DerbyError if they are not there."""
    wanted = asked if isinstance(asked, dict) else {}
    if wanted.get("difference") is True:
        found = first_differences(board)
        if not found:
            raise DerbyError("No column's text differs from the text that it is compared with.")
        return found[0]
    column, index = wanted.get("column"), wanted.get("index")
    if isinstance(column, int) and isinstance(index, int):
        counts = [len(score.moments) for score in board.scores]
        if 0 <= column < len(counts) and 0 <= index < counts[column]:
            return column, index
    raise DerbyError("There is no such step in this race: choose a token of a text.")


def _index(board: Scoreboard, label: Any, public: Callable[[str], str]) -> int:
    """The index of a column, given its public label or its title. If several match, the first one
    counts.
    """
    labels = [public(column.label) for column in board.columns]
    for names in (labels, [column.title for column in board.columns]):
        if label in names:
            return names.index(label)
    raise DerbyError(f"The last race has no column {label!r:.60}; it has {', '.join(labels)}.")
