"""Where the page's requests arrive: a form is read, a race is run, and views come back."""

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from backend.errors import DerbyError
from backend.export.production import LIBRARIES, won
from backend.export.snippets import Snippet, snippets
from backend.kvcache.snapshots import default_folder
from backend.programs.parser import is_program
from backend.racing.race import Race
from backend.racing.records import earlier_of, extended, read_record
from backend.racing.schedule import explain
from backend.results.scoreboard import Scoreboard
from backend.strategies.registry import Strategy
from backend.strategies.settings import DraftModelDrafting
from backend.types import AnswerSoFar
from backend.web.form import Values, read_more, read_race, require_offered
from backend.web.offer import Offer
from backend.web.view import View, alert, view
from backend.web.visitors import Visitors


class Controller:
    """Serves the visitors of one page. Nothing that they send is trusted."""

    def __init__(self, visitors: Visitors, menu: Offer) -> None:
        self._visitors = visitors
        self._menu = menu

    def race(self, visitor: str, values: Values) -> AsyncIterator[View]:
        """The views of the race that the form asks for."""
        return self._views(visitor, lambda: read_race(values, self._menu))

    def go_on(self, visitor: str, tokens: Any) -> AsyncIterator[View]:
        """The views of the visitor's last race going on for so many tokens."""

        def continued() -> Race:
            race, board = self._visitors.last(visitor)
            more = read_more(tokens)
            if is_program(race.request.prompt):
                raise DerbyError("A program runs to its end: there is nothing to go on with.")
            pairs = [extended(race.request, strategy, more) for strategy in race.columns]
            columns = tuple(strategy for _, strategy in pairs)
            earlier = tuple(map(earlier_of, board.scores))
            request = pairs[0][0]
            return replace(race, request=request, columns=columns, earlier=earlier, measure=False)

        return self._views(visitor, continued)

    def restore(self, visitor: str, snapshot: Any, tokens: Any) -> AsyncIterator[View]:
        """The views of a saved column going on for so many tokens."""

        def restored() -> Race:
            name = snapshot.strip() if isinstance(snapshot, str) else ""
            more = read_more(tokens)
            request, strategy, target = read_record(default_folder().info(name).record)
            require_offered(target, self._menu)
            request, strategy = extended(request, strategy, more)
            return Race(request, (strategy,), target, (AnswerSoFar(snapshot=name),))

        return self._views(visitor, restored)

    async def save(self, visitor: str, title: Any) -> tuple[str, str]:
        """Save the column called `title` of the visitor's last race: its id, and a sentence."""
        try:
            race, board = self._visitors.last(visitor)
            index = _index(board, title)
            saving = replace(
                race,
                columns=(race.columns[index],),
                earlier=(earlier_of(board.scores[index]),),
                save=True,
                measure=False,
                scope=visitor,
            )
            score = (await self._visitors.save(visitor, saving)).scores[0]
            told = score.message or f"{race.columns[index].title} is saved."
        except Exception as error:
            return "", self._menu.public(explain(error))
        return score.snapshot, self._menu.public(told)

    def production(self, visitor: str, title: Any, library: Any) -> Snippet:
        """How `library` does what the column called `title` of the visitor's last race did, with
        the settings that won. Of an error, no code and one sentence.
        """
        try:
            race, board = self._visitors.last(visitor)
            index = _index(board, title)
            wanted = _library(library)
            found = won(race.columns[index], board.scores[index])
            public = self._menu.public
            target = replace(race.target, name=public(race.target.name))
            strategy = _with_draft(found.strategy, public)
            moved = strategy != found.strategy or target != race.target
            made = snippets(strategy, race.request, target, found.settings)
        except Exception as error:
            return Snippet("", "python", "", self._menu.public(explain(error)))
        snippet = made[wanted]
        folder = "Put your own path in the place of the model's name. " if moved else ""
        return replace(snippet, note=f"{found.note} {folder}{snippet.note}".strip())

    async def _views(self, visitor: str, make: Callable[[], Race]) -> AsyncIterator[View]:
        """Views of a race, each unlike the one before it.

        A flaw in what was asked, or a full line, ends in one alert; the visitor's earlier race
        then goes on.
        """
        try:
            race = replace(make(), scope=visitor)
            # Later races have higher numbers, also across restarts of this server.
            number, last = time.time_ns() // 1_000_000, None
            async for frame in self._visitors.watch(visitor, race):
                shown = view(
                    frame.board,
                    race=number,
                    goal=race.request.max_new_tokens,
                    ahead=frame.ahead,
                    public=self._menu.public,
                )
                if shown != last:
                    yield shown
                last = shown
        except Exception as error:
            yield alert(self._menu.public(explain(error)))


def _library(library: Any) -> int:
    if library not in LIBRARIES:
        raise DerbyError(
            f"There is no code for {library!r:.60}; choose from {', '.join(LIBRARIES)}."
        )
    return LIBRARIES.index(library)


def _with_draft(strategy: Strategy, public: Callable[[str], str]) -> Strategy:
    """The column with a draft that is named as visitors may see it."""
    drafting = strategy.drafting
    if not isinstance(drafting, DraftModelDrafting):
        return strategy
    return replace(strategy, drafting=replace(drafting, draft=public(drafting.draft)))


def _index(board: Scoreboard, title: Any) -> int:
    titles = [strategy.title for strategy in board.columns]
    if title not in titles:
        raise DerbyError(f"The last race has no column {title!r:.60}; it has {', '.join(titles)}.")
    return titles.index(title)
