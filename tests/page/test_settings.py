"""The settings: a list of sections in a drawer over the race, and the chip that opens them."""

import re

import pytest
from browser import Visitor
from playwright.sync_api import expect

from backend.web.examples import examples

pytestmark = pytest.mark.browser


def test_it_stays_closed_once_it_was_closed(visitor: Visitor) -> None:
    """Its button told of one state and gradio's drawer held another, which could come after it: on
    a slow machine a drawer that had been closed was open again. There is one state now.
    """
    page = visitor.page
    page.set_viewport_size({"width": 380, "height": 800})
    drawer = page.locator("#settings")
    opener = page.get_by_role("button", name="Settings", exact=True)
    for _ in range(3):
        opener.click()
        expect(drawer).to_be_visible()
        expect(opener).to_have_attribute("aria-expanded", "true")
        page.keyboard.press("Escape")
        expect(drawer).to_be_hidden()
        expect(opener).to_have_attribute("aria-expanded", "false")
        expect(opener).to_be_focused()
        opener.click()
        page.get_by_role("button", name="Close the settings").click()
        expect(drawer).to_be_hidden()


def test_it_goes_by_keys_alone_and_a_click_beside_it_closes_it(visitor: Visitor) -> None:
    page = visitor.page
    page.set_viewport_size({"width": 1366, "height": 768})
    page.get_by_role("button", name="Settings", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("tab", name="Columns")).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("tab", name="Model")).to_be_focused()
    expect(page.get_by_role("tabpanel", name="Model")).to_be_visible()
    for _ in range(40):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('#settings') !== null")
    page.mouse.click(100, 400)
    expect(page.locator("#settings")).to_be_hidden()


def test_the_chip_says_what_runs_next_and_opens_the_model(visitor: Visitor) -> None:
    page = visitor.page
    chip = page.locator(".dd-chip-model")
    first, *others = examples()[:5]
    expect(chip).to_have_text(re.compile(rf"fake.*fp32 . {first.tokens} tokens . greedy"))
    example = next(each for each in others if each.tokens != first.tokens)
    page.get_by_role("button", name=example.label, exact=True).click()
    expect(chip).to_contain_text(f"{example.tokens} tokens")
    chip.click()
    expect(page.get_by_role("tab", name="Model")).to_have_attribute("aria-selected", "true")
    visitor.choose("Model", "fake-slow")
    visitor.tab("Sampling")
    page.get_by_label("Max new tokens").fill("9")
    page.get_by_label("number input for Temperature").fill("0.7")
    visitor.close_settings()
    expect(chip).to_have_text(re.compile("fake-slow *fp32 . 9 tokens . temperature 0.7"))
