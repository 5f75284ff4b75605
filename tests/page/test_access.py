"""The page for everyone: axe-core finds nothing of ours, in each state and both themes."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser import LONG, RACES, Visitor
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.thorough]

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]

#: What gradio does wrong, and we cannot mend: an empty code box has a label and no role.
GRADIOS = {("aria-prohibited-attr", ".empty")}

TABS = ("Columns", "Own grammar", "Sampling", "Model", "Save", "Production", "Benchmark")


def violations(visitor: Visitor) -> set[tuple[str, str]]:
    """Rules broken, each with the elements that break it, once gradio has loaded all parts."""
    visitor.page.wait_for_function("() => !document.querySelector('.loading')")
    options = {"runOnly": {"type": "tag", "values": RULES}, "resultTypes": ["violations"]}
    found = Axe().run(visitor.page, options=options).response["violations"]
    return {(rule["id"], str(node["target"][-1])) for rule in found for node in rule["nodes"]}


@pytest.fixture(params=[("light", 1366, 768), ("dark", 1366, 768), ("dark", 380, 800)])
def visitor(request: pytest.FixtureRequest, enter: Callable[..., Visitor]) -> Iterator[Visitor]:
    theme, width, height = request.param
    inside = enter(theme)
    inside.page.set_viewport_size({"width": width, "height": height})
    yield inside
    assert inside.complaints == []


def test_a_race_breaks_no_rule_idle_running_ended_or_opened(visitor: Visitor) -> None:
    page = visitor.page
    assert violations(visitor) == set()
    visitor.columns("kv", "speculative", "grammar:grammar=own", "stateless")
    visitor.tab("Own grammar")
    page.get_by_label("Your grammar").fill("start: (")
    visitor.ask(LONG, tokens=24, model="fake-slow")
    visitor.wait_decoding()
    assert violations(visitor) == set()
    visitor.wait_phase("ended")
    assert visitor.states[2] == "failed"
    assert violations(visitor) == set()
    for summary in page.locator(".dd-board summary").filter(visible=True).all():
        summary.click()
    page.locator(".dd-result .dd-helped").first.click()
    expect(page.locator(".dd-tip")).to_be_visible()
    assert violations(visitor) == set()


def test_a_replay_a_step_a_benchmark_and_the_history_break_no_rule(visitor: Visitor) -> None:
    page = visitor.page
    visitor.columns("kv", "lookahead:auto=off")
    page.keyboard.press("Escape")
    visitor.ask(LONG, tokens=24)
    visitor.wait_phase("ended")
    page.get_by_role("button", name="One step back").click()
    assert violations(visitor) == set()
    page.get_by_role("button", name="Back to the result").click()
    page.locator('.dd-card:nth-child(2) .dd-flow [data-round="12"]').first.click()
    expect(page.locator(".dd-tree")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert violations(visitor) == set()
    page.wait_for_function(f"{RACES}.length > 0")
    page.evaluate("scrollTo(0, 0)")  # out from under Run, which stays in sight
    visitor.tab("History")
    expect(page.locator(".dd-races li")).to_have_count(1)
    page.wait_for_timeout(400)  # what fades in has less contrast meanwhile
    assert violations(visitor) == set()
    visitor.tab("Benchmark")
    page.locator("summary", has_text="Your own prompts").click()
    page.locator("#prompt-set").fill("One\nTwo")
    page.get_by_role("button", name="Start", exact=True).click()
    page.wait_for_selector('.dd-benchmark[data-phase="ended"]')
    page.wait_for_timeout(400)
    assert violations(visitor) == set()


def test_the_settings_break_no_rule(visitor: Visitor) -> None:
    for name in TABS:
        visitor.tab(name)
        visitor.page.wait_for_timeout(400)  # what fades in has less contrast meanwhile
        assert violations(visitor) <= GRADIOS, name


def test_help_is_at_the_figure_for_fingers_and_keys(visitor: Visitor) -> None:
    """A tooltip shows to a mouse alone. Escape closes the help and leaves the race alone."""
    page = visitor.page
    visitor.columns("kv", "lookup")
    visitor.ask(LONG, tokens=24)
    visitor.wait_phase("ended")
    visitor.why("Figures")
    button = page.locator(".dd-result .dd-helped", has_text="TTFT").first
    button.press("Enter")  # the figures may be drawn once more behind the end, and lose the focus
    tip = page.locator(".dd-tip")
    expect(tip).to_contain_text("Time to first token")
    expect(tip).to_be_in_viewport(ratio=1)
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()


def test_whatever_has_the_focus_shows_it(visitor: Visitor) -> None:
    """Number boxes showed nothing."""
    visitor.tab("Sampling")
    visitor.page.locator(".dd-skip").focus()
    bare, boxes = [], 0
    for _ in range(60):
        visitor.page.keyboard.press("Tab")
        tag, kind, name, style = visitor.page.evaluate(
            "((e) => [e.tagName, e.type, e.ariaLabel || e.textContent,"
            "getComputedStyle(e).outline])(document.activeElement)"
        )
        boxes += kind == "number"
        if tag != "BODY" and not style.endswith("solid 3px"):
            bare.append((tag, name, style))
    assert boxes > 3
    assert bare == []


def test_headings_are_in_order(visitor: Visitor) -> None:
    visitor.open_settings()
    expect(visitor.page.get_by_role("heading", name="Settings")).to_be_visible()
    levels = visitor.page.get_by_role("heading").evaluate_all(
        "(nodes) => nodes.map((node) => [Number(node.tagName[1]), node.textContent])"
    )
    assert levels[0] == [1, "Decode Derby"]
    assert [text for level, text in levels if level == 2] == ["The race", "Settings"]
    for (before, _), (after, text) in pairwise(levels):
        assert after <= before + 1, text
