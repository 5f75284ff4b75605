"""A page that is left, or loaded anew, and comes back to its race."""

from collections.abc import Callable

import pytest
from browser import LONG, Visitor
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def test_a_reload_shows_the_race_and_its_end(visitor: Visitor) -> None:
    """After a reload the race went on unseen, and Production knew of none."""
    page = visitor.page
    visitor.columns("kv", "lookup")
    visitor.endless()
    visitor.wait_decoding()
    before = visitor.card("KV reuse").text
    page.reload()
    visitor.wait_phase("racing")
    assert visitor.card("KV reuse").text.startswith(before)
    expect(page.locator(".dd-status span")).to_contain_text("left")
    page.reload()  # twice, as one may
    visitor.wait_phase("racing")
    visitor.stop()
    visitor.wait_phase("ended")
    assert visitor.states == ["stopped", "stopped"]
    expect(page.get_by_role("button", name="Copy a link")).to_be_visible()
    page.reload()
    visitor.wait_phase("ended")
    visitor.tab("Production")
    expect(page.locator("#code")).to_contain_text("import")
    assert visitor.complaints == []


@pytest.mark.thorough
def test_tabs_of_a_browser_show_one_race_and_other_browsers_none(
    visitor: Visitor, enter: Callable[[], Visitor], address: str
) -> None:
    """A second tab was another visitor, whose race waited behind that of the first."""
    visitor.endless()
    visitor.wait_decoding()
    second = visitor.window.new_page()
    second.goto(address)
    second.wait_for_selector('.dd-board[data-phase="racing"]')
    expect(second.get_by_label("Prompt", exact=True)).to_have_value(LONG)  # the first one's form
    other = enter()
    other.page.wait_for_selector('.dd-board[data-phase="opening"]')
    second.locator("#stop").click()
    for page in (second, visitor.page):
        page.wait_for_selector('.dd-board[data-phase="ended"]')
    assert visitor.card("KV reuse").text == second.locator(".dd-flow").nth(1).inner_text()
    other.page.reload()
    other.wait_restored()
    other.wait_phase("opening")


@pytest.mark.parametrize(("changed", "phase"), [(False, "opening"), (True, "idle")])
def test_a_reload_plays_the_opening_race_again_while_nobody_has_changed_the_form(
    visitor: Visitor, changed: bool, phase: str
) -> None:
    """A page that was loaded anew showed empty lanes where the recorded race had played."""
    visitor.wait_restored()
    if changed:
        visitor.columns("kv")
    visitor.page.reload()
    visitor.wait_restored()
    assert visitor.page.locator(".dd-board").get_attribute("data-phase") == phase
