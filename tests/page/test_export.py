"""A race is replayed, looked into, exported and read back, in a real browser."""

import re
from collections.abc import Iterator

import pytest
from browser import LONG, RACES, VIEWPORT, Visitor
from playwright.sync_api import Browser, Download, expect

from backend.records.file import from_bytes

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def raced(browser: Browser, address: str) -> Iterator[Visitor]:
    """A visitor whose race has ended, for all who only look at it."""
    visitor = Visitor(browser, address)
    visitor.columns("kv", "speculative:draft=hybrid", "grammar:grammar=person", "lookup")
    visitor.page.keyboard.press("Escape")
    visitor.ask(LONG, tokens=48)
    visitor.wait_phase("ended")
    yield visitor
    visitor.close()


@pytest.fixture
def ended(raced: Visitor) -> Iterator[Visitor]:
    """The same, with no step on show afterwards."""
    yield raced
    if raced.page.locator(".dd-inspector").is_visible():
        raced.page.get_by_role("button", name="Close", exact=True).click()
    assert raced.complaints == []


def saved(visitor: Visitor, form: str) -> Download:
    with visitor.page.expect_download() as download:
        visitor.take(form)
    return download.value


def texts(visitor: Visitor) -> list[str]:
    return [visitor.card(title).text for title in visitor.titles]


def test_a_replay_shows_what_was_there_at_each_moment(ended: Visitor) -> None:
    page = ended.page
    whole = texts(ended)
    page.get_by_label("Unit of the replay").select_option("tokens")
    slider = page.get_by_label("Moment of the race")
    slider.focus()
    page.keyboard.press("Home")
    visible = page.locator(".dd-card").first.locator(".dd-flow span:not([hidden])")
    expect(visible).to_have_count(0)
    for count in (1, 2, 3):
        page.get_by_role("button", name="One step forward").click()
        assert len(page.locator(".dd-flow").first.inner_text()) == count
        expect(page.locator(".dd-replay-at")).to_have_text(f"{count} tokens")
    page.get_by_role("button", name="One step back").click()
    assert len(page.locator(".dd-flow").first.inner_text()) == 2
    page.get_by_role("button", name="Back to the result").click()
    assert texts(ended) == whole
    page.get_by_label("Speed of the replay").select_option("8")
    page.get_by_role("button", name="Replay", exact=True).click()
    expect(page.locator(".dd-board")).to_have_attribute("data-replay", "off")
    assert texts(ended) == whole


def test_a_step_is_shown_beside_its_token_and_a_phone_sees_both(ended: Visitor) -> None:
    """The panel stood at y = 1882, below the glossary. Escape closes it."""
    page = ended.page
    panel = page.locator(".dd-inspector")
    for width, height in ((1366, 768), (380, 800)):
        page.set_viewport_size({"width": width, "height": height})
        token = ended.card("Speculative").root.locator(".dd-flow [data-round]").nth(4)
        token.click()
        expect(panel).to_be_in_viewport(ratio=0.9)
        expect(token).to_be_in_viewport(ratio=1)
        shown, clicked = panel.bounding_box(), token.bounding_box()
        assert shown
        assert clicked
        beside = shown["x"] >= clicked["x"] + clicked["width"]
        beside |= shown["x"] + shown["width"] <= clicked["x"]
        assert beside or shown["y"] >= clicked["y"] + clicked["height"]
        page.keyboard.press("Escape")
        expect(panel).to_be_hidden()
    page.set_viewport_size(VIEWPORT)


def test_a_token_tells_of_its_step(ended: Visitor) -> None:
    page = ended.page
    card = ended.card("Speculative")
    card.root.locator(".dd-flow .dd-drafted, .dd-flow .dd-bonus").first.click()
    panel = page.locator(".dd-inspector")
    expect(panel).to_be_visible()
    expect(panel.locator(".dd-inspector-title")).to_contain_text("Speculative. Pass")
    title = panel.locator(".dd-inspector-title").inner_text()
    assert card.root.locator(".dd-selected").count() > 0
    card.root.locator(".dd-text").focus()
    page.keyboard.press("ArrowRight")
    expect(panel.locator(".dd-inspector-title")).not_to_have_text(title)
    page.get_by_role("button", name="First difference").click()
    expect(panel.locator(".dd-inspector-title")).to_contain_text("Grammar.")
    expect(panel.locator(".dd-said")).to_contain_text("on it differs from KV reuse")
    page.get_by_role("button", name="Close", exact=True).click()
    expect(panel).to_be_hidden()
    assert page.locator(".dd-selected").count() == 0


#: Of a drawn tree each node's fate and token, and the fate of the node that its line comes from,
#: found by where they stand; "" is the text so far.
DRAWN = """() => {
  const grid = document.querySelector(".dd-tree-grid");
  const nodes = [...grid.querySelectorAll(".dd-tree-node")];
  const middle = (box) => (box.top + box.bottom) / 2;
  const above = (line) => nodes.find((node) => {
    const [from, to] = [node.getBoundingClientRect(), line.getBoundingClientRect()];
    return Math.abs(from.right - to.left) < 2 && Math.abs(middle(from) - to.top) < 4;
  });
  return nodes.map((node) => [
    node.dataset.fate, node.querySelector("code").textContent,
    above(node.previousElementSibling)?.dataset.fate ?? "",
    parseFloat(getComputedStyle(node.previousElementSibling).borderBottomWidth),
  ]);
}"""
PROPOSED = """() => [...document.querySelectorAll(".dd-inspector table")]
  .find((table) => table.caption.textContent === "Guesses")
  .tBodies[0].rows"""


def test_a_tree_is_drawn_as_its_table_says(ended: Visitor) -> None:
    """Tokens in the same order, the committed path thick, and what the target chose instead."""
    page, fates = ended.page, set[str]()
    ended.card("Prompt lookup").root.locator(".dd-flow [data-round]").first.click()
    title = page.locator(".dd-inspector-title")
    expect(title).to_contain_text("Pass 1 of")
    steps = int(title.inner_text().partition(" of ")[2].partition(":")[0])
    for step in range(2, steps + 1):
        page.keyboard.press("ArrowRight")
        expect(title).to_contain_text(f"Pass {step} of")
        if not page.locator(".dd-tree").count():
            continue
        drawn = page.evaluate(DRAWN)
        table = page.evaluate(
            f"[...({PROPOSED})()].map((row) => [row.cells[2].textContent,"
            " row.cells[0].querySelector('code').textContent])"
        )
        assert [node[:2] for node in drawn if node[0] != "chosen"] == table
        for fate, _, above, thickness in drawn:
            committed = fate in ("accepted", "chosen")
            assert thickness == (3 if committed else 1)
            assert (above in ("", "accepted")) == (fate != "not reached")
        assert [fate for fate, *_ in drawn].count("chosen") == 1
        fates |= {fate for fate, *_ in drawn}
    assert {"rejected", "chosen"} <= fates


def test_every_form_is_saved(ended: Visitor) -> None:
    record = from_bytes(saved(ended, "json").path().read_bytes())
    assert record.request.prompt == LONG
    assert saved(ended, "csv").path().read_text(encoding="utf-8").startswith("column,")
    assert "| KV reuse |" in saved(ended, "markdown").path().read_text(encoding="utf-8")
    assert saved(ended, "svg").path().read_text(encoding="utf-8").startswith("<svg ")


def test_a_link_holds_the_settings_and_is_copied_or_there_to_be_copied(
    ended: Visitor, browser: Browser
) -> None:
    page = ended.page
    page.evaluate("void (navigator.clipboard.writeText = async (it) => { window.copied = it })")
    said = page.locator(".dd-export p")
    field = page.get_by_label("Link to the settings")
    page.get_by_role("button", name="Copy a link").click()
    expect(said).to_have_text(re.compile(r"^Link copied\. It holds the settings"))
    link = page.evaluate("window.copied")
    assert link == page.evaluate("location.href"), "as the address bar does"
    expect(field).to_be_hidden()
    page.evaluate("void (navigator.clipboard.writeText = () => Promise.reject())")
    page.get_by_role("button", name="Copy a link").click()
    expect(said).to_have_text("Copy the link from here.")
    expect(field).to_be_focused()
    assert field.evaluate("(it) => it.value.slice(it.selectionStart, it.selectionEnd)") == link
    other = Visitor(browser, link)
    try:
        other.wait_phase("idle")
        expect(other.page.get_by_label("Prompt", exact=True)).to_have_value(LONG)
        assert other.titles == ended.titles
        other.page.locator("#run").click()
        other.wait_phase("ended")
        assert texts(other) == texts(ended)
        assert other.complaints == []
    finally:
        other.close()


@pytest.mark.thorough
@pytest.mark.parametrize("query", ["?max_new_tokens=many", "?prompt=" + "a" * 9000])
def test_a_wrong_link_is_one_sentence(browser: Browser, address: str, query: str) -> None:
    visitor = Visitor(browser, f"{address}{query}")
    try:
        alert = visitor.page.locator(".dd-board .dd-alert")
        expect(alert).to_have_text(re.compile("must be a whole number|shorten it"))
        assert visitor.complaints == []
    finally:
        visitor.close()


def test_the_history_lists_compares_opens_and_forgets(visitor: Visitor) -> None:
    page = visitor.page
    visitor.columns("kv", "speculative", "lookup")
    visitor.ask("One question", tokens=24)
    page.wait_for_function(f"{RACES}.length > 0")
    first = texts(visitor)
    visitor.ask("Another question", tokens=24)
    page.wait_for_function(f"{RACES}.length > 1")
    visitor.tab("History")
    rows = page.locator(".dd-races li")
    expect(rows).to_have_count(2)
    speed = r"( \d+\.\d\d.)?"  # of a race that was quiet
    line = f"fake fp32 . KV reuse . Speculative{speed} . Prompt lookup{speed}$"
    expect(rows.first.locator("p").last).to_have_text(re.compile(line))
    page.get_by_label("Search the races").fill("another")
    expect(rows).to_have_count(1)
    page.get_by_label("Search the races").fill("")
    beside = page.get_by_role("button", name="Side by side")
    delete = page.get_by_role("button", name="Delete selected")
    expect(beside).to_be_disabled()
    expect(delete).to_be_disabled()
    for box in rows.locator("input").all():
        box.check()
    beside.click()
    lines = page.locator(".dd-history tbody tr")
    expect(lines).to_have_count(3)
    expect(lines.first.locator("td").last).to_contain_text("different text")
    rows.nth(1).locator("a").click()
    expect(page.locator(".dd-recorded")).to_contain_text("Recorded on ")
    assert texts(visitor) == first
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("One question")
    visitor.tab("History")
    for box in rows.locator("input").all():
        box.check()
    delete.click()
    expect(rows).to_have_count(0)
    expect(page.get_by_role("button", name="Run a first race")).to_be_visible()
    assert visitor.complaints == []
