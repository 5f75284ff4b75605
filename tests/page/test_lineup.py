"""The line-up's editor in a real browser: its list and its text are one thing."""

import re
from collections.abc import Callable

import pytest
from browser import Visitor
from playwright.sync_api import Locator, expect

from backend.strategies.registry import DEFAULT_COLUMNS
from backend.web.examples import presets as known_presets

pytestmark = pytest.mark.browser

USUAL = list(DEFAULT_COLUMNS)


@pytest.fixture
def visitor(enter: Callable[..., Visitor]) -> Visitor:
    """Who has opened the editor, which is in the settings."""
    inside = enter()
    inside.tab("Columns")
    return inside


def text(visitor: Visitor) -> Locator:
    return visitor.page.get_by_label("Edit as text")


def expect_lines(visitor: Visitor, *lines: str) -> None:
    """In the text, in the list, and on the board that shows what would run."""
    expect(text(visitor)).to_have_value("\n".join(lines))
    drawn = visitor.page.locator(".dd-lineup-column")
    expect(drawn).to_have_count(len(lines))
    for i, line in enumerate(lines):
        name = re.split("[@:]", line)[0]
        expect(drawn.nth(i)).to_have_attribute("data-strategy", name)
        expect(drawn.nth(i).locator("code")).to_have_text("" if name == line else line)
    expect(visitor.page.locator(".dd-card")).to_have_count(len(lines))


def press(visitor: Visitor, name: str, nth: int = 0) -> None:
    visitor.page.get_by_role("button", name=name, exact=True).nth(nth).click()


def open_column(visitor: Visitor, nth: int) -> Locator:
    column = visitor.page.locator(".dd-lineup-column").nth(nth)
    column.locator("summary").click()
    return column


def test_a_line_up_is_built_without_typing(visitor: Visitor) -> None:
    expect_lines(visitor, *USUAL)
    press(visitor, "Remove Stateless")
    press(visitor, "Remove Grammar")
    press(visitor, "Add KV reuse")
    press(visitor, "Duplicate Speculative")
    expect_lines(visitor, "kv", "speculative", "speculative", "lookahead", "kv")
    press(visitor, "Move KV reuse up", 1)
    press(visitor, "Move KV reuse up", 1)
    expect_lines(visitor, "kv", "speculative", "kv", "speculative", "lookahead")
    column = open_column(visitor, 3)
    most = column.get_by_label("k", exact=True)
    most.fill("4")
    most.press("Tab")
    column.get_by_label("Draft", exact=True).select_option("int4 copy")
    expect_lines(visitor, "kv", "speculative", "kv", "speculative:k=4,draft=int4", "lookahead")
    assert not column.get_by_label("Auto", exact=True).is_checked()  # who names a size wants it
    expect(column.get_by_label("k", exact=True)).to_have_value("4")
    column.get_by_label("Auto", exact=True).check()
    expect(most).to_have_value("4")
    column.get_by_label("Grammar", exact=True).select_option("date")
    column.get_by_label("Precision", exact=True).select_option("fp32")
    expect(text(visitor)).to_have_value(re.compile("speculative@fp32:.*grammar=date"))
    visitor.ask("Hello", tokens=16)
    visitor.wait_phase("ended")
    assert visitor.states == ["done"] * 5
    assert len(set(visitor.titles)) == 5
    assert visitor.complaints == []


def test_the_text_is_read_while_it_is_written(visitor: Visitor) -> None:
    """A wrong line is named, the list stays as it was, and nothing typed is lost, nor markup."""
    problem = visitor.page.locator("#lineup-problem")
    text(visitor).fill("kv\nlookup:k=3,ngram=2")
    expect_lines(visitor, "kv", "lookup:k=3,ngram=2")
    column = open_column(visitor, 1)
    expect(column.get_by_label("k", exact=True)).to_have_value("3")
    expect(column.get_by_label("n-gram", exact=True)).to_have_value("2")
    wrong = "kv\nlookup:k=99,ngram=2"
    text(visitor).fill(wrong)
    expect(problem).to_have_text(
        "Line 2 of the line-up: Prompt lookup: k is 99; it must lie between 1 and 32."
    )
    expect(column.get_by_label("k", exact=True)).to_have_value("3")
    press(visitor, "Remove KV reuse")
    expect(visitor.page.locator(".dd-lineup-column").first).to_contain_text(
        "Line 2 of the line-up: "
    )
    expect(text(visitor)).to_have_value(wrong)
    visitor.close_settings()
    visitor.page.locator("#run").click()
    expect(visitor.page.locator(".dd-alert")).to_contain_text("Line 2 of the line-up: ")
    visitor.tab("Columns")
    text(visitor).fill("kv\nlookup:k=9,ngram=2")
    expect(problem).to_have_text("")
    expect(column.get_by_label("k", exact=True)).to_have_value("9")
    text(visitor).fill('kv\n<img src=x onerror="window.hacked=1">${alert(1)}{{constructor}}')
    expect(problem).to_contain_text("<img src=x")
    assert visitor.page.locator("#lineup img, #board img").count() == 0
    assert visitor.page.evaluate("window.hacked") is None
    assert visitor.complaints == []


@pytest.mark.thorough
def test_what_was_typed_last_is_what_runs(visitor: Visitor) -> None:
    """A click on Run that comes before the editor has read the text."""
    text(visitor).fill("kv\nlookup")
    visitor.ask("Hello", tokens=8)
    visitor.wait_phase("ended")
    assert visitor.titles == ["KV reuse", "Prompt lookup"]
    visitor.tab("Columns")
    text(visitor).fill("lookup:k=2")
    visitor.page.evaluate("document.getElementById('run').click()")
    expect(visitor.page.locator(".dd-card")).to_have_count(1)
    visitor.wait_phase("ended")
    assert visitor.states == ["done"]


@pytest.mark.thorough
def test_a_refused_setting_says_why_and_stays_to_be_corrected(visitor: Visitor) -> None:
    column = open_column(visitor, 2)
    column.get_by_label("Draft", exact=True).select_option("Hub id...")
    box = column.get_by_label("Draft: Hub id")
    box.fill("/etc/passwd")
    box.press("Tab")
    expect(column).to_contain_text("There is no model '/etc/passwd' on this page")
    expect(box).to_have_value("/etc/passwd")
    expect(text(visitor)).to_have_value("\n".join(USUAL))
    box.fill("owner/model")
    box.press("Tab")
    expect(text(visitor)).to_have_value(re.compile("speculative:draft=owner/model"))
    expect(column).not_to_contain_text("no model")


@pytest.mark.thorough
def test_every_question_has_its_line_up(visitor: Visitor) -> None:
    page = visitor.page
    presets = page.locator(".dd-presets button").all_inner_texts()
    assert len(presets) >= 5
    abouts = {preset.title: preset.about for preset in known_presets()}
    seen = ["\n".join(USUAL)]
    for preset in presets[1:]:
        press(visitor, preset)
        expect(text(visitor)).not_to_have_value(seen[-1])
        lines = text(visitor).input_value()
        assert lines not in seen
        seen.append(lines)
        expect(page.locator(".dd-card")).to_have_count(len(lines.split("\n")))
        expect(page.locator(".dd-about")).to_have_text(abouts[preset])
        expect(page.locator("#lineup-problem")).to_have_text("")
    press(visitor, presets[0])
    expect_lines(visitor, *DEFAULT_COLUMNS)
