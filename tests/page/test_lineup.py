"""The line-up's editor in a real browser: its list and its text are one thing."""

import re
from collections.abc import Callable

import pytest
from browser import Visitor
from playwright.sync_api import Locator, Route, expect

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
    most = column.get_by_label("k, at most", exact=True)
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


def test_what_a_preset_compares_is_said_where_nothing_hovers(visitor: Visitor) -> None:
    """It stood in a tooltip alone, which a phone does not show."""
    about = visitor.page.locator(".dd-about")
    expect(about).to_have_text("Each of these replaces the columns below.")
    named = {preset.name: preset for preset in known_presets()}
    first, second = named["strategies"], named["k"]
    visitor.page.get_by_role("button", name=first.title, exact=True).focus()
    expect(about).to_have_text(first.about)
    expect_lines(visitor, *USUAL)
    press(visitor, second.title)
    expect(about).to_have_text(second.about)


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
def test_clicks_in_a_row_each_mean_the_column_they_were_made_on(visitor: Visitor) -> None:
    """A double click removes one column, and a column that is moved keeps focus and settings."""
    visitor.columns("kv", "lookup:k=2", "lookup:k=3", "lookup:k=4")
    page = visitor.page
    page.get_by_role("button", name="Remove Prompt lookup").first.dblclick()
    expect_lines(visitor, "kv", "lookup:k=3", "lookup:k=4")
    open_column(visitor, 0)
    page.get_by_role("button", name="Move KV reuse down").focus()
    for _ in range(4):
        page.keyboard.press("Enter")
    expect_lines(visitor, "lookup:k=3", "lookup:k=4", "kv")
    focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert focused == "Move KV reuse down"
    expect(page.locator(".dd-lineup-column").nth(2).locator("details")).to_have_attribute(
        "open", ""
    )


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


@pytest.mark.parametrize("requests", [1, 2])
def test_what_is_typed_before_the_page_has_been_filled_in_stays(
    visitor: Visitor, requests: int
) -> None:
    """The answer that fills in the form brought back the line-up that it had been asked with, over
    one that was typed meanwhile: before that was sent (1), or before it was answered (2).
    """
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    visitor.page.route("**/run/predict*", hold)
    visitor.page.reload()
    visitor.tab("Columns")
    expect(visitor.page.locator(".dd-lineup-column")).to_have_count(len(USUAL))
    text(visitor).fill("kv\nlookup")
    while len(held) < requests:
        visitor.page.wait_for_timeout(20)
    for route in held:
        route.continue_()
    visitor.page.unroute("**/run/predict*", hold)
    expect(visitor.page.locator(".dd-lineup-column")).to_have_count(2)
    expect_lines(visitor, "kv", "lookup")
    assert visitor.complaints == []


@pytest.mark.thorough
def test_there_are_twelve_columns_at_most(visitor: Visitor) -> None:
    visitor.columns(*["kv"] * 11)
    press(visitor, "Add KV reuse")
    expect_lines(visitor, *["kv"] * 12)
    expect(visitor.page.get_by_role("button", name="Add KV reuse")).to_be_disabled()
    press(visitor, "Duplicate KV reuse")
    expect(visitor.page.locator(".dd-lineup-column").first).to_contain_text("12 columns already")
    expect_lines(visitor, *["kv"] * 12)


@pytest.mark.thorough
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [380, 1366])
def test_the_editor_fits_its_window(enter: Callable[..., Visitor], theme: str, width: int) -> None:
    visitor = enter(theme)
    visitor.page.set_viewport_size({"width": width, "height": 900})
    visitor.columns("kv@fp32/CPU:model=fake", "lookahead:window=7,level=4,guesses=7,seeded=false")
    open_column(visitor, 0)
    open_column(visitor, 1)
    visitor.page.get_by_label("Edit as text").fill("kv@" + "x" * 200)
    expect(visitor.page.locator("#lineup-problem")).to_contain_text("Line 1 of the line-up: ")
    assert visitor.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    edge = visitor.page.evaluate(
        "Math.max(...[...document.querySelectorAll('.dd-lineup *')]"
        ".map((node) => node.getBoundingClientRect().right))"
    )
    assert edge <= width
