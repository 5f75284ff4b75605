"""A page whose connection breaks: nothing typed is lost, and the race is caught up."""

import contextlib
import re
import select
import socket
import threading
from collections.abc import Iterator

import pytest
from browser import LONG, Visitor
from playwright.sync_api import BrowserContext, expect

pytestmark = pytest.mark.browser


class Wire:
    """A way to the server that can be cut: every connection breaks, and no new one is made."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._whole = threading.Event()
        self._whole.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._whole.clear()
        for end in list(self._sockets):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._whole.set()

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self._whole.is_set():
                    threading.Thread(target=self._join, args=(near,), daemon=True).start()
                else:
                    near.close()

    def _join(self, near: socket.socket) -> None:
        with near, socket.create_connection(("127.0.0.1", self._port)) as far:
            self._sockets |= {near, far}
            with contextlib.suppress(OSError):
                while True:
                    for end in select.select([near, far], [], [])[0]:
                        data = end.recv(65536)
                        if not data:
                            return
                        (far if end is near else near).sendall(data)


@pytest.fixture
def wire(address: str) -> Iterator[Wire]:
    found = Wire(int(address.rstrip("/").rsplit(":", 1)[1]))
    yield found
    found.close()


def begin(visitor: Visitor) -> None:
    """A long race, and what a page loses if it is loaded anew."""
    visitor.endless()
    visitor.wait_decoding()
    visitor.page.evaluate("window.kept = true")


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
    assert page.evaluate("window.kept") is True
    assert page.get_by_label("Prompt", exact=True).input_value() == LONG
    visitor.stop()
    visitor.wait_phase("ended")
    assert set(visitor.states) <= {"stopped", "done"}
    page.locator("#continue").click()
    page.wait_for_selector(".dd-card .dd-earlier")
    visitor.stop()
    visitor.wait_phase("ended")


def test_a_connection_that_is_cut_loses_nothing(browser: BrowserContext, wire: Wire) -> None:
    """Gradio once reloaded the page, which then knew nothing of the race or of what was typed."""
    visitor = Visitor(browser, f"http://127.0.0.1:{wire.port}/")
    begin(visitor)
    wire.cut()
    expect(visitor.page.get_by_role("alert")).to_have_text(re.compile("connection is lost"))
    wire.mend()
    require_caught_up(visitor)
    visitor.close()


def test_a_page_that_nobody_sees_has_no_stream(browser: BrowserContext, address: str) -> None:
    """It was sent every view of the race, four a second, and drew none."""
    visitor = Visitor(browser, address)
    page = visitor.page
    page.evaluate(
        "() => Object.defineProperty(document, 'hidden', { get: () => window.away, "
        "configurable: true })"
    )
    begin(visitor)
    turn = "(away) => { window.away = away; document.dispatchEvent(new Event('visibilitychange')) }"
    with page.expect_event("requestfailed", lambda request: "/queue/data" in request.url):
        page.evaluate(turn, True)
    page.evaluate(turn, False)
    require_caught_up(visitor)
    visitor.close()


def test_two_seconds_offline_lose_nothing(browser: BrowserContext, address: str) -> None:
    assert browser.browser is not None
    context = browser.browser.new_context()
    visitor = Visitor(context, address)
    begin(visitor)
    context.set_offline(True)
    visitor.page.wait_for_timeout(2000)
    context.set_offline(False)
    require_caught_up(visitor)
    context.close()


def test_what_is_asked_for_while_offline_is_done_afterwards(
    browser: BrowserContext, wire: Wire
) -> None:
    """A Stop and a Run that could not be sent are sent once they can."""
    visitor = Visitor(browser, f"http://127.0.0.1:{wire.port}/")
    begin(visitor)
    wire.cut()
    alert = visitor.page.locator(".dd-alert")
    expect(alert).to_have_text(re.compile("connection is lost"))
    visitor.stop()
    wire.mend()
    visitor.wait_phase("ended")
    assert "stopped" in visitor.states
    wire.cut()
    visitor.ask("Hello", tokens=16)
    expect(alert).to_have_text(re.compile("connection is lost"))
    wire.mend()
    visitor.page.wait_for_function(
        "document.querySelector('.dd-board').dataset.phase === 'ended' && "
        "!document.querySelector('.dd-alert').textContent"
    )
    expect(visitor.page.locator(".dd-card").first).to_have_attribute("data-state", "done")
    visitor.close()


def test_a_page_that_is_left_in_a_race_does_not_complain(
    browser: BrowserContext, address: str
) -> None:
    """Gradio ends its stream then, which was told to the console as a lost connection."""
    visitor = Visitor(browser, address)
    begin(visitor)
    visitor.page.reload()
    visitor.page.wait_for_selector(".dd-card")
    assert visitor.complaints == []
    visitor.close()
