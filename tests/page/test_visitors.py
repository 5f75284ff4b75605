"""Guests of the page in browsers, over the fake engine and the app as its users start it."""

import os
import signal
from collections.abc import Callable

import psutil
import pytest
from browser import Visitor, serving
from playwright.sync_api import Browser, expect

from page.guests import WAITING

pytestmark = pytest.mark.browser

Enter = Callable[..., Visitor]

ENDLESS = {"prompt": "Long one 7", "max_new_tokens": 3900, "model": "fake-slow", "lineup": "kv"}

#: It would take all memory.
HOSTILE = "start: A0\n" + "".join(f"A{i}: A{i + 1} A{i + 1}\n" for i in range(60)) + 'A60: "a"'


def test_five_visitors_each_get_their_turn(enter: Enter) -> None:
    visitors = [enter(prompt=f"Visitor {i}", max_new_tokens=40, lineup="kv") for i in range(5)]
    for visitor in visitors:
        visitor.run()
    for visitor in visitors:
        visitor.wait("ended")
        assert len(visitor.texts[0]) == 40


def test_one_browser_has_two_waiting_races(enter: Enter, address: str) -> None:
    first = enter(**ENDLESS)
    with first.page.expect_request("**/queue/join*") as joined:
        first.begin()
    call = joined.value.post_data_json or {}
    short = [20 if value == ENDLESS["max_new_tokens"] else value for value in call["data"]]
    for tab in range(WAITING):
        body = call | {"session_hash": str(tab), "data": short}
        assert first.window.request.post(joined.value.url, data=body).status == 200
    second = Visitor(first.window, address, **ENDLESS)
    second.run()
    expect(second.page.locator(".toast-body")).to_contain_text("wait until one begins")
    other = enter(**ENDLESS)  # a browser of its own
    other.run()
    expect(other.page.locator("#line")).to_contain_text("queue: 3/3")


def test_a_killed_worker_fails_its_race_alone(enter: Enter) -> None:
    first, second = enter(**ENDLESS), enter(prompt="Next", max_new_tokens=40, lineup="kv")
    first.begin()
    second.run()
    for process in psutil.Process().children(recursive=True):
        if "spawn_main" in " ".join(process.cmdline()):
            os.kill(process.pid, signal.SIGKILL)
    expect(first.page.locator("body")).to_contain_text("SIGKILL")
    second.wait("ended")
    assert len(second.texts[0]) == 40
    first.begin()


def test_a_hostile_grammar_is_tried_in_a_child(enter: Enter) -> None:
    """By the button and by a race, while the worker lives on."""
    visitor = enter(grammar_text=HOSTILE, lineup="grammar:grammar=own\nkv", max_new_tokens=40)
    visitor.settings("Own grammar")
    visitor.page.get_by_role("button", name="Check").click()
    expect(visitor.page.locator(".toast-body.error")).to_contain_text("too big")
    visitor.page.keyboard.press("Escape")
    visitor.prompt.press("Enter")
    visitor.wait("ended")
    assert [bool(text) for text in visitor.texts] == [False, True]
    expect(visitor.board).to_contain_text("too big")


def test_a_page_below_a_path_races(browser: Browser) -> None:
    with serving("--fake", "--root-path", "/derby") as address:
        visitor = Visitor(browser, f"{address}derby/", max_new_tokens=40, lineup="kv")
        visitor.run()
        visitor.wait("ended")
        assert len(visitor.texts[0]) == 40
        assert all("/derby/" in url for url in visitor.requests if url.startswith("http"))
        visitor.close()
