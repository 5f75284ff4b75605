"""Where the page's requests arrive."""

import asyncio
import threading
from typing import Any

import pytest

from backend.errors import DerbyError
from backend.events import Finished, Started
from backend.racing.hosts.inline import InlineHost
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import default_column
from backend.types import ModelSpec, Request
from backend.web.controller import Controller
from backend.web.offer import Offer
from backend.web.visitors import Frame, Visitors


def test_a_form_is_read_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that took 16 s to read held every visitor's page for as long."""
    others_go_on, seen = threading.Event(), list[bool]()

    def slow(*_: Any) -> None:
        seen.append(others_go_on.wait(20))
        raise DerbyError("wrong")

    monkeypatch.setattr("backend.web.controller.read_race", slow)

    async def scene() -> Any:
        controller = Controller(Visitors(InlineHost()), Offer((), ()))
        asyncio.get_running_loop().call_later(0, others_go_on.set)
        return await controller.race("a", {})

    assert asyncio.run(scene()) == {"alert": "wrong"}
    assert seen == [True]


def test_a_page_that_opens_early_hears_what_is_prepared_until_nothing_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("backend.web.controller.PERIOD", 0)
    said = iter(["Loading it...", "Converting the model...", "Loading it...", ""])

    class Early(InlineHost):
        @property
        def preparing(self) -> str:
            return next(said)

    async def scene() -> list[Any]:
        controller = Controller(Visitors(Early()), Offer((), ()))
        controller.show_preparation("a")
        controller.show_preparation("a")  # another tab
        return [message.data async for message in controller.feeds.of("a").read()]

    assert asyncio.run(scene())[-1] in ({"preparing": ""}, [[["preparing"], "=", ""]])


def test_why_a_race_was_put_out_stands_with_its_verdict() -> None:
    """The page shows `top`, and the note was put before the sentence that is read aloud alone."""
    columns = (default_column("kv"),)
    board = Scoreboard(columns)
    for event in (Started(0, 1, "m"), Finished(0, "stopped", [])):
        board.add(event)
    race = Race(Request("Hi"), columns, ModelSpec("fake", "fake"))
    controller = Controller(Visitors(InlineHost()), Offer((), ()))
    ended = Frame(race, 1, board, 0, "Others wait.", over=True)
    shown = controller._drawn(ended, "")
    for name in ("status", "top"):
        assert shown[name].startswith("Others wait. Stopped before the first token.")
