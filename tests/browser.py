"""What the tests of the page share: the app as its users start it, and Chromium to look at it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Page,
    ViewportSize,
    expect,
    sync_playwright,
)

from backend.models.files import model_title
from backend.records.file import as_bytes
from backend.records.record import RaceRecord
from page.modules import PLACE

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

# A busy machine draws late: what is expected must come, however long it takes within reason.
expect.set_options(timeout=30_000)

VIEWPORT: ViewportSize = {"width": 1920, "height": 1080}

#: Tabs of the page itself.
VIEWS = ("Race", "Benchmark", "History")

#: The races that this browser keeps.
RACES = "JSON.parse(localStorage['decode-derby-races'] || '[]')"

#: A prompt to which the fake model writes a text of more than 3,900 tokens.
LONG = "Long one 7"


@contextmanager
def serving(
    *options: str, cache: Path | None = None, variables: Mapping[str, str] | None = None
) -> Iterator[str]:
    """`python app.py OPTIONS` on a free port: its address, once it answers."""
    command = [sys.executable, "app.py", "--port", "0", *options]
    environment = dict(os.environ)
    environment.pop("SPACE_ID", None)
    environment |= variables or {}
    if cache is not None:
        environment["DECODE_DERBY_CACHE"] = str(cache)
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            said = []
            for line in process.stdout:
                said.append(line)
                if found := re.search(r"http://\S+", line):
                    yield found[0]
                    break
            else:
                pytest.fail(f"the app ended before it served: {''.join(said)}")
        finally:
            process.terminate()


@contextmanager
def launched(*arguments: str) -> Iterator[Browser]:
    """A headless browser, with more arguments; without one, a failure where CI is set and a skip
    elsewhere.
    """
    if not CHROMIUM.exists():
        reason = f"there is no browser at {CHROMIUM}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*ARGUMENTS, *arguments]
        )
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """A window on the page, and what its owner does and sees there."""

    def __init__(
        self, browser: Browser | BrowserContext, address: str, theme: str = "light"
    ) -> None:
        """In a window of its own, unless one is given."""
        given = isinstance(browser, BrowserContext)
        self.window = browser if given else browser.new_context(viewport=VIEWPORT)
        self.page: Page = self.window.new_page()
        self.page.set_default_timeout(60_000)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._console)
        self.page.on("request", lambda request: self.requests.append(request.url))
        joint = "&" if "?" in address else "?"
        self.page.goto(f"{address}{joint}__theme={theme}")
        self.page.wait_for_selector(".dd-card")

    def _console(self, message: object) -> None:
        if getattr(message, "type", "") == "error":
            self.complaints.append(str(getattr(message, "text", "")))

    def close(self) -> None:
        self.window.close()

    def script(self, body: str) -> Any:
        """What the body of an asynchronous function returns that has the page's `modules`."""
        begin = f"const {{ modules }} = await import('{PLACE}');"
        return self.page.evaluate(f"async () => {{ {begin} {body} }}")

    def open_settings(self) -> None:
        """Open the drawer that the sections are in."""
        if self.page.locator("#settings[data-open=true]").count() == 0:
            self.page.get_by_role("button", name="Settings", exact=True).click()
        self.page.locator("#settings[data-open=true]").wait_for()

    def close_settings(self) -> None:
        """Close it, as it lies over the board."""
        if self.page.locator("#settings[data-open=true]").count():
            self.page.get_by_role("button", name="Close the settings").click()
        expect(self.page.locator("#settings[data-open=true]")).to_have_count(0)

    def tab(self, name: str) -> None:
        """Open a tab, or a section of the settings."""
        if name in VIEWS:
            self.close_settings()
        else:
            self.open_settings()
        self.page.get_by_role("tab", name=name, exact=True).filter(visible=True).click()

    def why(self, name: str) -> None:
        """Open a tab of the panel below a race that has ended."""
        panel = self.page.locator(".dd-why")
        if panel.get_attribute("open") is None:
            panel.locator("summary").click()
        panel.get_by_role("tab", name=name, exact=True).click()

    def open(self, record: RaceRecord) -> None:
        """Show a recorded race, as the history does."""
        self.script(f"modules['kept.js'].kept.open({json.dumps(as_bytes(record).decode())});")
        self.wait_phase("ended")

    def take(self, form: str) -> None:
        """Press what a race is taken along by."""
        self.page.get_by_role("button", name="Download", exact=True).click()
        self.page.locator(f"[data-form={form}]").click()

    def choose(self, label: str, option: str) -> None:
        """Pick an option of a drop-down on the tab that is open."""
        box = self.page.get_by_role("combobox", name=label, exact=True)
        box.click()
        self.page.get_by_role("option", name=option, exact=True).click()

    def columns(self, *lines: str) -> None:
        """Write the line-up as text, and wait until its editor has read it."""
        self.tab("Columns")
        names = [re.split("[@:]", line)[0] for line in lines]
        drawn = self.page.locator(".dd-lineup-column")
        expect(drawn.first).to_be_visible()  # as who types sees it; it is loaded when first opened
        text, box = "\n".join(lines), self.page.get_by_label("Edit as text")
        if box.input_value() == text:  # or nothing tells that it has been read
            box.fill("kv")
            expect(drawn).to_have_count(1)
        box.fill(text)
        expect(drawn).to_have_count(len(lines))
        for i, name in enumerate(names):
            expect(drawn.nth(i)).to_have_attribute("data-strategy", name or "server")

    def ask(self, prompt: str, *, tokens: int = 128, model: str = "fake") -> None:
        """Fill in the form and run."""
        self.page.bring_to_front()  # browsers slow down the tabs behind
        self.page.get_by_label("Prompt", exact=True).fill(prompt)
        self.tab("Sampling")
        self.page.get_by_label("Max new tokens").fill(str(tokens))
        self.tab("Model")
        self.choose("Model", model_title(model))
        self.close_settings()
        self.page.locator("#run").click()

    def stop(self) -> None:
        self.page.bring_to_front()
        self.page.locator("#stop").click()

    def endless(self) -> None:
        """Start a race that would take minutes."""
        self.ask(LONG, tokens=3900, model="fake-slow")

    def wait_phase(self, phase: str) -> None:
        self.page.wait_for_selector(f'.dd-board[data-phase="{phase}"]')

    def wait_restored(self) -> None:
        """Wait until the form is as this browser kept it, which the chip beside Run then says."""
        expect(self.page.locator(".dd-chip-model")).not_to_be_empty()

    def wait_decoding(self) -> None:
        self.page.wait_for_selector('.dd-card[data-state="decoding"] .dd-sampled')

    def card(self, title: str) -> "Card":
        return Card(self.page, title)

    @property
    def titles(self) -> list[str]:
        return self.page.locator(".dd-card h3").all_inner_texts()

    @property
    def states(self) -> list[str | None]:
        cards = self.page.locator(".dd-card").all()
        return [card.get_attribute("data-state") for card in cards]

    @property
    def status(self) -> str:
        return self.page.locator(".dd-status").inner_text()


class Card:
    """What one column shows."""

    def __init__(self, page: Page, title: str) -> None:
        self.root = page.locator(".dd-card", has=page.get_by_role("heading", name=title))

    @property
    def text(self) -> str:
        return self.root.locator(".dd-flow").text_content() or ""

    def part(self, name: str) -> str:
        return self.root.locator(f".dd-{name}").text_content() or ""
