"""Where the page's requests arrive: a form is read, a race is run, and views come back."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

from backend.errors import DerbyError, explain
from backend.export.plan import Snippet
from backend.export.production import snippet
from backend.kvcache.snapshots import Info, default_folder
from backend.limits import PRIVATE, Limits
from backend.programs.parser import is_program
from backend.racing.commands import Command, MeasureCosts, SaveColumn
from backend.racing.race import Race
from backend.racing.records import read_record
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import Column
from backend.types import AnswerSoFar
from backend.web.form import Values, read_race, read_tokens, require_allowed, wants_measuring
from backend.web.offer import Offer
from backend.web.snapshots import VisitorSnapshots
from backend.web.view import View, alert, gone, preparing, view
from backend.web.visitors import PERIOD, Frame, Visitors

#: Views that may wait for one reader.
BACKLOG = 4


class Controller:
    """Serves the visitors of one page. Nothing that they send is trusted.

    `backlog` says how many views a visitor has not read yet.
    """

    def __init__(
        self,
        visitors: Visitors,
        offer: Offer,
        limits: Limits = PRIVATE,
        backlog: Callable[[str], int] = lambda _: 0,
    ) -> None:
        self._visitors = visitors
        self._offer = offer
        self._backlog = backlog
        self._snapshots = VisitorSnapshots(limits)

    def race(self, visitor: str, values: Values) -> AsyncIterator[View]:
        """The views of the race that the form asks for."""

        def requested() -> tuple[Race, Sequence[Command]]:
            race = read_race(values, self._offer)
            measure = wants_measuring(values)
            return race, [MeasureCosts(race.columns, race.target)] if measure else []

        return self._views(visitor, requested)

    def again(self, visitor: str) -> AsyncIterator[View]:
        """The views of the visitor's last race run once more, with the same settings and seed."""
        return self._views(visitor, lambda: (self._visitors.last(visitor)[0], ()))

    def go_on(self, visitor: str, tokens: Any) -> AsyncIterator[View]:
        """The views of the visitor's last race going on for so many tokens."""

        def continued() -> tuple[Race, Sequence[Command]]:
            race, board = self._visitors.last(visitor)
            more = read_tokens(tokens, self._offer)
            if is_program(race.request.prompt):
                raise DerbyError("A program runs to its end: there is nothing to go on with.")
            request = replace(race.request, max_new_tokens=more)
            columns = tuple(column.limited(more) for column in race.columns)
            answers = tuple(score.answer_so_far for score in board.scores)
            return replace(race, request=request, columns=columns, earlier=answers), ()

        return self._views(visitor, continued)

    def restore(self, visitor: str, snapshot: Any, tokens: Any) -> AsyncIterator[View]:
        """The views of a saved column going on for so many tokens."""

        def restored() -> tuple[Race, Sequence[Command]]:
            name = snapshot.strip() if isinstance(snapshot, str) else ""
            more = read_tokens(tokens, self._offer)
            request, column, target = read_record(default_folder().info(name).record)
            require_allowed(request, column, target, self._offer)
            request = replace(request, max_new_tokens=more)
            return Race(request, (column.limited(more),), target, (AnswerSoFar(snapshot=name),)), ()

        return self._views(visitor, restored)

    async def save(self, visitor: str, label: Any) -> tuple[str, str]:
        """Save the column `label` of the visitor's last race: its id, and a sentence."""
        try:
            race, board = self._visitors.last(visitor)
            index = _index(board, label, self._offer.public)
            owner = self._snapshots.owner(visitor)
            saving = SaveColumn(race, index, board.scores[index].answer_so_far, owner)
            column = race.columns[index]
            score = (await self._visitors.save(visitor, saving, column)).scores[0]
            saved = f"{column.title} is saved." if score.snapshot else "Saving was stopped."
        except Exception as error:
            return "", self._offer.public(explain(error))
        return score.snapshot, self._offer.public(score.message or saved)

    def saved(self, visitor: str) -> list[tuple[str, str]]:
        """What the visitor's browser saved, newest first: a line on each, and its id. Reads files,
        so not for the event loop.
        """
        try:
            return [(_line(info), info.id) for info in self._snapshots.list(visitor)]
        except DerbyError as error:
            explain(error)
            return []

    def delete(self, visitor: str, name: Any) -> str:
        """Delete one of the visitor's own snapshots; a sentence. Not for the event loop."""
        name = name.strip() if isinstance(name, str) else ""
        try:
            self._snapshots.remove(visitor, name)
        except Exception as error:
            return self._offer.public(explain(error))
        return f"Snapshot {name} is deleted."

    def labels(self, visitor: str) -> list[str]:
        """The columns of the visitor's last race, as they may be named here; none before it."""
        try:
            columns = self._visitors.last(visitor)[0].columns
        except DerbyError:
            return []
        return [self._offer.public(column.label) for column in columns]

    def production(self, visitor: str, label: Any, library: Any) -> Snippet:
        """How `library` does what the column `label` of the visitor's last race did, with the
        settings in force. Of an error, no code and one sentence.
        """
        public = self._offer.public
        try:
            race, board = self._visitors.last(visitor)
            index = _index(board, label, public)
            column = _public(race.columns[index], public)
            target = replace(race.target, name=public(race.target.name))
            moved = (column, target) != (race.columns[index], race.target)
            made = snippet(column, board.scores[index], race.request, target, library)
        except Exception as error:
            return Snippet("", "python", "", public(explain(error)))
        folder = "Put your own path in the place of the model's name." if moved else ""
        return replace(made, note=f"{folder} {made.note}".strip())

    def look(self, visitor: str) -> View:
        """The visitor's last race as it stands, for a page that lost its connection."""
        try:
            return self._drawn(self._visitors.look(visitor))
        except Exception as error:
            return gone(self._offer.public(explain(error)))

    async def prepare(self) -> AsyncIterator[View]:
        """What is still being prepared before there can be a race, until nothing is."""
        said = None
        while said != "":
            if (text := self._offer.public(self._visitors.preparing)) != said:
                yield preparing(text)
            said = text
            await asyncio.sleep(PERIOD if said else 0)

    def seen(self, visitor: str) -> None:
        """The visitor's page is open, whatever its connection."""
        self._visitors.seen(visitor)

    async def _views(
        self, visitor: str, make: Callable[[], tuple[Race, Sequence[Command]]]
    ) -> AsyncIterator[View]:
        """Views of a race, each unlike the one before it, and of the commands that go before it;
        only so many that whoever reads slowly keeps up, and the last one in any case.

        A flaw in what was asked, or a full queue, ends in one alert; the visitor's earlier race
        then goes on.
        """
        self.seen(visitor)
        try:
            race, before = await asyncio.to_thread(make)  # the page does not wait meanwhile
            last = None
            async for frame in self._visitors.watch(visitor, race, before):
                if self._backlog(visitor) >= BACKLOG and not frame.over:
                    continue
                shown = self._drawn(frame)
                if shown != last:
                    yield shown
                last = shown
        except Exception as error:
            yield alert(self._offer.public(explain(error)))

    def _drawn(self, frame: Frame) -> View:
        race = frame.race
        written = max((len(answer.tokens) for answer in race.earlier), default=0)
        shown = view(
            frame.board,
            race=frame.number,
            goal=written + race.request.max_new_tokens,
            ahead=frame.ahead,
            public=self._offer.public,
        )
        return {**shown, "status": f"{frame.note} {shown['status']}".strip()}


def _line(info: Info) -> str:
    """A snapshot in a list of one's own."""
    tokens = info.prompt_tokens + info.answer_tokens
    what = f"{info.record.get('strategy', '')}, {tokens:,} tokens, {info.bytes / 1e6:,.1f} MB"
    return f"{info.id}: {what}, {info.created[11:16]} UTC"


def _public(column: Column, public: Callable[[str], str]) -> Column:
    """The column with models that are named as visitors may see them."""
    values = tuple(
        (name, public(value) if isinstance(value, str) else value) for name, value in column.values
    )
    return replace(
        column, values=values, model=replace(column.model, name=public(column.model.name))
    )


def _index(board: Scoreboard, label: Any, public: Callable[[str], str]) -> int:
    """Which column is meant: by its public label, or by its title, the first that bears it."""
    labels = [public(column.label) for column in board.columns]
    for names in (labels, [column.title for column in board.columns]):
        if label in names:
            return names.index(label)
    raise DerbyError(f"The last race has no column {label!r:.60}; it has {', '.join(labels)}.")
