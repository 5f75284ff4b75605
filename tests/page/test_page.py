"""The page in a real browser, over the fake engine and the app as its users start it."""

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser import Visitor
from playwright.sync_api import expect

from backend.form import EXAMPLES

pytestmark = pytest.mark.browser

Enter = Callable[..., Visitor]

#: To which the fake model writes more than 3,900 tokens, and takes minutes where it is slow.
ENDLESS = {"prompt": "Long one 7", "max_new_tokens": 3900, "model": "fake-slow"}


def test_a_race_runs_to_its_end(enter: Enter, address: str) -> None:
    """Same texts, the figures and the code are there; nothing is fetched from elsewhere."""
    visitor = enter(prompt="Long one 7", max_new_tokens=64)
    page = visitor.page
    visitor.prompt.press("Enter")
    visitor.wait("ended")
    assert visitor.columns == ["Stateless", "KV reuse", "Speculative", "Lookahead", "Grammar"]
    _, plain, speculative, lookahead, grammar = visitor.texts
    assert len(plain) > 40
    assert speculative == lookahead == plain
    assert grammar.startswith('{\n  "full_name": "')
    page.get_by_role("button", name="Why?").click()
    expect(page.locator("#figures")).to_contain_text("tokens per pass")
    page.get_by_role("button", name="Use in production").click()
    expect(page.locator("#code")).to_contain_text("Long one 7")
    assert visitor.complaints == []
    assert {u for u in visitor.requests if not u.startswith((address, "data:", "blob:"))} == set()


def test_stop_shows_what_there_is(enter: Enter) -> None:
    visitor = enter(**ENDLESS, lineup="kv\nspeculative")
    visitor.begin()
    begun = time.monotonic()
    visitor.stop()
    visitor.wait("ended")
    assert time.monotonic() - begun < 3
    assert all(visitor.texts)
    visitor.begin()  # the machine is free again
    visitor.stop()


def test_a_closed_tab_lets_the_next_race_run(enter: Enter) -> None:
    """One line for all: a place in it is told, and whoever leaves frees the machine."""
    first, second = (enter(**ENDLESS, lineup="kv") for _ in range(2))
    first.begin()
    second.run()
    expect(second.page.locator("#line")).to_contain_text("queue: 1/1")
    begun = time.monotonic()
    first.page.close()
    second.wait("running")
    assert time.monotonic() - begun < 5
    second.stop()
    second.wait("ended")


def test_a_waiting_race_leaves_the_line(enter: Enter) -> None:
    first, second = (enter(**ENDLESS, lineup="kv") for _ in range(2))
    first.begin()
    second.run()
    expect(second.page.locator("#line")).to_contain_text("queue: 1/1")
    second.stop()
    expect(second.page.locator("#line")).not_to_contain_text("queue")
    first.stop()
    first.wait("ended")
    first.page.wait_for_timeout(1000)
    assert second.board.get_attribute("data-phase") == "recorded"


def test_a_link_fills_in_the_settings(enter: Enter, address: str) -> None:
    visitor = enter(prompt="How & why?", lineup="kv\nlookup", temperature=0.5, chat="false")
    visitor.page.locator("#share").click()
    link = visitor.page.locator("#link textarea, #link input")
    expect(link).to_have_value(re.compile("^http"))
    assert link.input_value().startswith(address)
    visitor.visit(link.input_value())
    expect(visitor.prompt).to_have_value("How & why?")
    visitor.settings("Sampling")
    expect(visitor.page.get_by_label("Chat template")).not_to_be_checked()
    expect(visitor.page.locator("#settings textarea").first).to_have_value("kv\nlookup")


def test_tabs_have_addresses(enter: Enter) -> None:
    visitor = enter()
    visitor.open("History")
    expect(visitor.page).to_have_url(re.compile("tab=history"))
    visitor.page.go_back()
    expect(visitor.page.get_by_role("tab", name="Race", exact=True)).to_have_attribute(
        "aria-selected", "true"
    )
    visitor.page.go_forward()
    expect(visitor.page.locator("#races")).to_be_visible()
    visitor.page.reload()
    expect(visitor.page.locator("#races")).to_be_visible()


def test_the_history_opens_a_race_again(enter: Enter) -> None:
    """Also after a reload, with its text, its settings and its files."""
    visitor = enter(prompt="Long <b>one</b> 8", max_new_tokens=40, lineup="kv\nlookup")
    visitor.run()
    visitor.wait("ended")
    texts = visitor.texts
    visitor.visit(visitor.page.url.partition("?")[0])
    visitor.open("History")
    visitor.page.locator("#races").get_by_text("Long <b>one</b> 8").locator("visible=true").click()
    expect(visitor.page.locator("#board .flow").first).to_have_text(texts[0])
    assert visitor.texts == texts
    expect(visitor.prompt).to_have_value("Long <b>one</b> 8")
    visitor.page.on("dialog", lambda dialog: dialog.accept())
    visitor.open("History")
    visitor.page.get_by_role("button", name="Clear").click()
    expect(visitor.page.locator("#races").get_by_text("Long")).to_have_count(0)


def test_an_example_sets_up_a_race(enter: Enter) -> None:
    visitor = enter()
    program = next(example for example in EXAMPLES if "{{" in example.prompt)
    visitor.page.get_by_role("button", name=program.label, exact=True).click()
    expect(visitor.prompt).to_have_value(program.prompt)
    visitor.run()
    visitor.wait("ended")
    assert len(visitor.columns) == len(program.lineup.splitlines())


def test_an_own_grammar_becomes_a_column(enter: Enter) -> None:
    visitor = enter(lineup="kv", max_new_tokens=20)
    visitor.settings("Own grammar")
    visitor.page.locator("#settings .cm-content").fill('start: "maybe')
    visitor.page.get_by_role("button", name="Check").click()
    expect(visitor.page.locator(".toast-body.error")).to_be_visible()
    visitor.page.locator("#settings .cm-content").fill('start: "maybe"')
    visitor.page.get_by_role("button", name="Use it in a column").click()
    expect(visitor.page.locator("#settings textarea").first).to_have_value(
        re.compile("grammar=own")
    )
    visitor.run()
    visitor.wait("ended")
    assert visitor.texts[1] == "maybe"


def test_what_cannot_run_is_an_error_and_no_markup(enter: Enter) -> None:
    visitor = enter(lineup="kv\n<b>bold</b>")
    visitor.run()
    expect(visitor.page.locator(".toast-body.error")).to_contain_text("<b>bold</b>")
    assert visitor.page.locator(".toast-body b").count() == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [380, 1366])
def test_the_page_fits_and_is_accessible(enter: Enter, width: int, theme: str) -> None:
    visitor = enter(width=width, theme=theme)
    page = visitor.page
    page.get_by_role("button", name="Why?").click()
    page.get_by_role("button", name="Use in production").click()
    expect(page.locator("#code")).to_contain_text("import")
    wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
    assert not wide
    violations = found(page)
    visitor.settings("Sampling")
    violations += found(page)
    assert violations == []


def found(page: Any) -> list[str]:
    """What axe complains of."""
    page.wait_for_timeout(500)  # so that nothing is half faded in
    violations = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {json.dumps([node['html'][:200] for node in each['nodes']][:3])}"
        for each in violations
    ]
