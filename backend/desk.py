"""Where the page's requests arrive: a form is read, a race is run, and views come back."""

import time
from collections.abc import AsyncIterator

from backend.form import Values, read_race
from backend.menu import Menu
from backend.schedule import explain
from backend.view import View, alert, view
from backend.visitors import Visitors


async def race_views(
    visitor: str, values: Values, visitors: Visitors, menu: Menu
) -> AsyncIterator[View]:
    """The views of the race that the form asks for, each unlike the one before it.

    A form with a flaw, or a full line, ends in one alert; the visitor's earlier race then goes on.
    """
    try:
        asked = read_race(values, menu)
        # Later races have higher numbers, also across restarts of this server.
        number, last = time.time_ns() // 1_000_000, None
        async for frame in visitors.watch(visitor, asked):
            shown = view(
                frame.board,
                race=number,
                goal=asked.request.max_new_tokens,
                ahead=frame.ahead,
                public=menu.public,
            )
            if shown != last:
                yield shown
            last = shown
    except Exception as error:
        yield alert(menu.public(explain(error)))
