"""What the tests of the page share: the app as its users start it, and Chromium to look at it."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]

# A busy machine draws late: what is expected must come, however long it takes within reason.
expect.set_options(timeout=20_000)


@contextmanager
def serving(cache: Path, *options: str) -> Iterator[str]:
    """The app with its fake engine on a free port: its address, once it answers."""
    environment = os.environ | {"DECODE_DERBY_CACHE": str(cache)}
    environment.pop("SPACE_ID", None)
    with running("app.py", "--port", "0", "--fake", *options, environment=environment) as address:
        yield address


@contextmanager
def board_app(file: Path) -> Iterator[str]:
    """The address of tests/page/board_app.py."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with running("tests/page/board_app.py", str(file), environment=environment) as address:
        yield address


@contextmanager
def running(*command: str, environment: dict[str, str]) -> Iterator[str]:
    """A program of Python's that serves: the address that it prints."""
    with subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            lines = []
            for line in process.stdout:
                lines.append(line)
                if address := re.search(r"(?:^|Derby is at )(http\S+)", line):
                    yield address[1]
                    break
            else:
                pytest.fail(f"it ended before it served: {''.join(lines)}")
        finally:
            process.terminate()


@contextmanager
def launched() -> Iterator[Browser]:
    """A headless browser; without one, a failure where CI is set and a skip elsewhere."""
    if not CHROMIUM.exists():
        reason = f"there is no browser at {CHROMIUM}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """A window on the page, opened with these settings, and what its owner does and sees there."""

    def __init__(
        self,
        browser: Browser,
        address: str,
        *,
        width: int = 1366,
        theme: str = "light",
        **settings: Any,
    ) -> None:
        self.window = browser.new_context(viewport={"width": width, "height": 900})
        self.page: Page = self.window.new_page()
        self.page.set_default_timeout(20_000)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.board = self.page.locator("#board .race")
        self.visit(f"{address}?{urlencode({'__theme': theme, **settings})}")

    def visit(self, address: str) -> None:
        """Open an address, and wait until its settings are filled in."""
        with self.page.expect_response(lambda response: "run/predict" in response.url):
            self.page.goto(address)
        expect(self.board).to_have_attribute("data-phase", "recorded")  # the one that it opens with

    def close(self) -> None:
        self.window.close()

    def run(self) -> None:
        self.page.bring_to_front()  # browsers slow down the tabs behind
        self.page.locator("#run").click()

    def stop(self) -> None:
        self.page.locator("#stop").click()

    def wait(self, phase: str) -> None:
        expect(self.board).to_have_attribute("data-phase", phase)
        if phase == "ended":
            expect(self.page.locator("#board .files")).to_be_visible()  # with its last drawing

    def begin(self) -> None:
        """Run, and wait until a column writes."""
        self.run()
        self.begin_writing()

    def begin_writing(self) -> None:
        self.wait("running")
        expect(self.page.locator("#board .flow").first).not_to_be_empty()

    def open(self, tab: str) -> None:
        self.page.get_by_role("tab", name=tab, exact=True).click()

    def settings(self, part: str = "") -> None:
        """Open the settings, and a part of them."""
        self.page.locator("#opener").click()
        if part:
            self.page.locator("#settings").get_by_role(
                "button", name=re.compile(f"^{part}")
            ).click()

    @property
    def prompt(self):
        return self.page.locator("#prompt textarea")

    @property
    def columns(self) -> list[str]:
        return self.page.locator("#board .card h2").all_inner_texts()

    @property
    def texts(self) -> list[str]:
        return [text or "" for text in self.page.locator("#board .flow").all_text_contents()]
