"""A page whose connection breaks: nothing typed is lost, and the race is caught up."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import LONG, Visitor, serving
from playwright.sync_api import Browser, expect
from proxy import Proxy

pytestmark = pytest.mark.browser


@pytest.fixture
def wire(address: str) -> Iterator[Proxy]:
    found = Proxy(port_of(address))
    yield found
    found.close()


def port_of(address: str) -> int:
    return int(address.rstrip("/").rsplit(":", 1)[1])


def begin(visitor: Visitor) -> None:
    """A long race, and a mark on the page, which is lost if that is loaded anew."""
    visitor.endless()
    visitor.wait_decoding()
    visitor.page.evaluate("window.markOfTheTest = true")


def require_caught_up(visitor: Visitor) -> None:
    """The race goes on where it is by now, and the page is the same one."""
    page = visitor.page
    expect(page.locator(".dd-alert")).to_have_text("")
    text = visitor.card("KV reuse").text
    page.wait_for_function(
        "(length) => [...document.querySelectorAll('.dd-card')].some((card) => "
        "card.querySelector('h3').textContent === 'KV reuse' && "
        "card.querySelector('.dd-text').textContent.length > length + 40)",
        arg=len(text),
    )
    assert page.evaluate("window.markOfTheTest") is True
    assert page.get_by_label("Prompt", exact=True).input_value() == LONG
    visitor.stop()
    visitor.wait_phase("ended")
    assert set(visitor.states) <= {"stopped", "done"}


def test_a_connection_that_is_cut_loses_nothing(browser: Browser, wire: Proxy) -> None:
    """Gradio once loaded the page anew, which then knew nothing of the race or the form."""
    visitor = Visitor(browser, wire.address)
    begin(visitor)
    wire.cut()
    expect(visitor.page.get_by_role("alert")).to_have_text(re.compile("connection is lost"))
    wire.restore()
    require_caught_up(visitor)
    visitor.close()


def test_a_page_that_nobody_sees_is_sent_nothing_and_keeps_its_place(
    browser: Browser, address: str
) -> None:
    """It was sent every view of the race, four a second, and drew none."""
    visitor = Visitor(browser, address)
    page = visitor.page
    page.emulate_media(reduced_motion="reduce")  # no lane is still on its way
    page.evaluate(
        "() => Object.defineProperty(document, 'hidden', { get: () => window.away, "
        "configurable: true })"
    )
    begin(visitor)
    turn = "(away) => { window.away = away; document.dispatchEvent(new Event('visibilitychange')) }"
    with page.expect_request(lambda request: "quiet=1" in request.url):
        page.evaluate(turn, True)
    shown = page.locator(".dd-board").inner_text()
    page.wait_for_timeout(1000)
    assert page.locator(".dd-board").inner_text() == shown
    page.evaluate(turn, False)
    require_caught_up(visitor)
    visitor.close()


@pytest.mark.thorough
def test_a_run_whose_answer_is_lost_is_run_once(browser: Browser, tmp_path: Path) -> None:
    """It was sent again until it was answered, and so were Start and Save: each happened twice."""
    with serving("--fake", "--limit", "races_per_hour=1", cache=tmp_path) as address:
        wire = Proxy(port_of(address))
        visitor = Visitor(browser, wire.address)
        visitor.page.get_by_label("Prompt", exact=True).fill("Once")
        expect(visitor.page.locator(".dd-status")).to_contain_text("Grammar fits only its example")
        wire.deaf = True
        with visitor.page.expect_request("**/run/predict*"):
            visitor.page.locator("#run").click()
        visitor.page.wait_for_timeout(500)  # it has arrived
        wire.cut()
        wire.deaf = False
        visitor.page.wait_for_timeout(1500)  # time for another try
        wire.restore()
        visitor.wait_phase("ended")  # of the page as gradio loads it anew
        expect(visitor.page.get_by_label("Prompt", exact=True)).to_have_value("Once")
        assert set(visitor.states) == {"done"}
        expect(visitor.page.locator(".dd-alert")).to_have_text("")
        visitor.close()
        wire.close()
