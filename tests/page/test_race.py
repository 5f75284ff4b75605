"""A race as the page runs it, over the fake engine in this process: drawings only grow, others who
wait end a long one, programs come before the machine one at a time.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from backend.errors import DerbyError
from backend.events import Event
from backend.limits import Limits
from backend.offer import Offer, offer_of
from backend.racing.hosts import InlineHost
from backend.racing.race import Race
from page.api import Line
from page.race import race

HERE = offer_of(("fake",), ())
SHORT = replace(HERE, limits=Limits(seconds=1))
ENDLESS = {"prompt": "Long one 7", "max_new_tokens": 3900, "model": "fake-slow", "lineup": "kv"}


def drawn(
    form: dict[str, Any],
    offer: Offer = HERE,
    others_wait: Callable[[], bool] = lambda: False,
    enough: Callable[[], bool] = lambda: False,
) -> list[dict[str, Any]]:
    """What is drawn of a race, in its order, to its end or until that is enough."""

    async def collect() -> list[dict[str, Any]]:
        drawings, last = [], None
        async with aclosing(race(InlineHost(), offer, form, others_wait)) as pairs:
            async for drawing, run in pairs:
                drawings.append(drawing)
                last = run
                if enough():
                    return drawings
        return [*drawings, last.end()] if last else drawings

    return asyncio.run(collect())


def test_drawings_only_grow_and_the_last_has_the_files() -> None:
    drawings = drawn({"prompt": "Long one 7", "max_new_tokens": 60, "lineup": "kv\nspeculative"})
    steps = [[column["steps"] for column in drawing["columns"]] for drawing in drawings]
    for before, after in pairwise(steps):
        assert all(new.startswith(old) for old, new in zip(before, after, strict=True))
    assert len({drawing["race"] for drawing in drawings}) == 1
    assert [drawing["phase"] for drawing in drawings].count("ended") >= 1
    assert set(drawings[-1]["files"]) == {"race.json", "race.md", "race.svg"}


@pytest.mark.parametrize("others", [True, False])
def test_a_long_race_ends_where_others_wait(*, others: bool) -> None:
    """They are asked about once the time is over: whoever is asked often goes on."""
    answers = list[bool]()

    def others_wait() -> bool:
        answers.append(others)
        return others

    drawings = drawn(ENDLESS, SHORT, others_wait, lambda: answers.count(False) > 9)
    assert drawings[-1]["columns"][0]["state"] == ("stopped" if others else "decoding")


def test_what_fails_every_column_alike_is_one_error() -> None:
    with pytest.raises(DerbyError, match="context"):
        drawn({"prompt": "word " * 9000, "lineup": "kv\nlookup"})


def test_programs_come_before_the_machine_one_at_a_time_and_not_for_ever() -> None:
    """However many wait, a visitor of the page waits for one of them at most."""
    together, most = 0, 0

    class Counting(InlineHost):
        def run(
            self, race: Race, emit: Callable[[Event], None], stopped: Callable[[], bool]
        ) -> None:
            nonlocal together, most
            together += 1
            most = max(most, together)
            super().run(race, emit, stopped)
            together -= 1

    async def gone() -> bool:
        return False

    async def three() -> list[dict[str, Any]]:
        line = Line(Counting(), SHORT)
        return await asyncio.gather(*(line.report(ENDLESS, gone) for _ in range(3)))

    reports = asyncio.run(three())
    assert most == 1
    assert [report["columns"][0]["state"] for report in reports] == ["stopped"] * 3
