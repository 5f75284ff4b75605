"""Where the page's requests arrive: a form is read, a race is run, and views come back."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

from backend.errors import DerbyError, explain
from backend.export.plan import Snippet
from backend.export.production import snippet
from backend.kvcache.snapshots import default_folder
from backend.kvcache.sources import Visitor
from backend.programs.parser import is_program
from backend.racing.commands import Command, MeasureCosts, SaveColumn
from backend.racing.race import Race
from backend.racing.records import read_record
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import Column
from backend.types import AnswerSoFar
from backend.web.form import Values, read_more, read_race, require_offered, wants_measuring
from backend.web.offer import Offer
from backend.web.view import View, alert, view
from backend.web.visitors import Visitors


class Controller:
    """Serves the visitors of one page. Nothing that they send is trusted."""

    def __init__(self, visitors: Visitors, offer: Offer) -> None:
        self._visitors = visitors
        self._offer = offer

    def race(self, visitor: str, values: Values) -> AsyncIterator[View]:
        """The views of the race that the form asks for."""

        def requested() -> tuple[Race, Sequence[Command]]:
            race = read_race(values, self._offer)
            measure = wants_measuring(values)
            return race, [MeasureCosts(race.columns, race.target)] if measure else []

        return self._views(visitor, requested)

    def go_on(self, visitor: str, tokens: Any) -> AsyncIterator[View]:
        """The views of the visitor's last race going on for so many tokens."""

        def continued() -> tuple[Race, Sequence[Command]]:
            race, board = self._visitors.last(visitor)
            more = read_more(tokens)
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
            more = read_more(tokens)
            request, column, target = read_record(default_folder().info(name).record)
            require_offered(target, self._offer)
            request = replace(request, max_new_tokens=more)
            return Race(request, (column.limited(more),), target, (AnswerSoFar(snapshot=name),)), ()

        return self._views(visitor, restored)

    async def save(self, visitor: str, label: Any) -> tuple[str, str]:
        """Save the column `label` of the visitor's last race: its id, and a sentence."""
        try:
            race, board = self._visitors.last(visitor)
            index = _index(board, label, self._offer.public)
            mine = replace(race, scope=Visitor(visitor))
            saving = SaveColumn(mine, index, board.scores[index].answer_so_far)
            column = race.columns[index]
            score = (await self._visitors.save(visitor, saving, column)).scores[0]
            sentence = score.message or f"{column.title} is saved."
        except Exception as error:
            return "", self._offer.public(explain(error))
        return score.snapshot, self._offer.public(sentence)

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

    async def _views(
        self, visitor: str, make: Callable[[], tuple[Race, Sequence[Command]]]
    ) -> AsyncIterator[View]:
        """Views of a race, each unlike the one before it, and of the commands that go before it.

        A flaw in what was asked, or a full queue, ends in one alert; the visitor's earlier race
        then goes on.
        """
        try:
            race, before = make()
            race = replace(race, scope=Visitor(visitor))
            # Later races have higher numbers, also across restarts of this server.
            number, last = time.time_ns() // 1_000_000, None
            written = max((len(answer.tokens) for answer in race.earlier), default=0)
            async for frame in self._visitors.watch(visitor, race, before):
                shown = view(
                    frame.board,
                    race=number,
                    goal=written + race.request.max_new_tokens,
                    ahead=frame.ahead,
                    public=self._offer.public,
                )
                if shown != last:
                    yield shown
                last = shown
        except Exception as error:
            yield alert(self._offer.public(explain(error)))


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
