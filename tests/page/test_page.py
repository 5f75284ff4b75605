"""The page in a real browser, over the fake engine and the app as its users start it: races, the
line, links, history, own grammars, the benchmark, a worker that dies; axe finds nothing.
"""

import json
import os
import re
import signal
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from axe_playwright_python.sync_playwright import Axe
from browser import Visitor
from playwright.sync_api import Page, Route, expect

from backend.form import EXAMPLES, PRESETS

pytestmark = pytest.mark.browser

Enter = Callable[..., Visitor]

#: To which the fake model writes more than 3,900 tokens, and takes minutes where it is slow.
ENDLESS = {"prompt": "Long one 7", "max_new_tokens": 3900, "model": "fake-slow", "lineup": "kv"}

CODE = "Code for other columns and libraries"

#: A grammar that would take all memory.
HOSTILE = "start: A0\n" + "".join(f"A{i}: A{i + 1} A{i + 1}\n" for i in range(60)) + 'A60: "a"'


#: Waits until nothing is half faded in.
FADED_IN = """() => Promise.allSettled(document.getAnimations().filter(
(animation) => animation.effect.getComputedTiming().endTime < Infinity).map(
(animation) => animation.finished))"""


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
    page.get_by_role("button", name=CODE).click()
    expect(page.locator("#code")).to_contain_text("Long one 7")
    code = page.locator("#code pre").text_content()
    assert code
    compile(code, "code", "exec")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#code-copy").click()
    page.wait_for_function("navigator.clipboard.readText().then((text) => text.length > 100)")
    assert page.evaluate("navigator.clipboard.readText()") == code
    assert visitor.complaints == []
    assert {u for u in visitor.requests if not u.startswith((address, "data:", "blob:"))} == set()


def test_another_race_begins_when_this_one_has_stopped(enter: Enter) -> None:
    """By Enter: while a race runs, the button in its place is Stop."""
    visitor = enter(**ENDLESS)
    visitor.begin()
    expect(visitor.page.locator("#run")).to_be_hidden()
    visitor.prompt.fill("Short one 4")
    visitor.prompt.press("Enter")
    expect(visitor.board.locator(".asked")).to_contain_text("Short one 4")
    visitor.begin_writing()
    visitor.stop()
    visitor.wait("ended")
    expect(visitor.page.locator("#stop")).to_be_hidden()
    visitor.open("History")
    expect(visitor.page.locator("#races")).to_contain_text("Stopped early")


def test_who_leaves_the_line_lets_the_next_race_run(enter: Enter) -> None:
    """Whoever runs closes the tab; whoever waits sees his place, and stops."""
    first, second, third = (enter(**ENDLESS) for _ in range(3))
    first.begin()
    second.run()
    second.wait("waiting")
    expect(second.board.locator(".status")).to_contain_text("1 race ahead")
    third.run()
    expect(third.board.locator(".status")).to_contain_text("2 races ahead")
    second.stop()
    second.wait("ended")
    expect(third.board.locator(".status")).to_contain_text("1 race ahead")
    first.page.close()
    third.wait("running")
    third.stop()
    third.wait("ended")


def test_a_race_has_a_turn_between_a_benchmark_s(enter: Enter) -> None:
    many = enter(model="fake-loop", lineup="kv\nlookup", max_new_tokens=40)
    many.open("Benchmark")
    many.page.locator("#bench-prompts textarea").fill("\n".join(["Once more"] * 200))
    many.page.locator("#bench-run").click()
    expect(many.page.locator("#bench-status")).to_contain_text("of 200 prompts")
    visitor = enter(prompt="Short one 4", max_new_tokens=40, lineup="kv")
    visitor.run()
    visitor.wait("ended")
    assert all(visitor.texts)
    many.page.close()


def test_a_benchmark_ends_with_its_tab(enter: Enter) -> None:
    slow, visitor = enter(**ENDLESS), enter(prompt="Short one 4", max_new_tokens=40, lineup="kv")
    slow.open("Benchmark")
    slow.page.locator("#bench-prompts textarea").fill("Long one 7\nLong one 8")
    slow.page.locator("#bench-run").click()
    expect(slow.page.locator("#bench-status")).to_contain_text("0 of 2 prompts")
    visitor.run()
    visitor.wait("waiting")
    slow.page.close()
    visitor.wait("ended")
    assert all(visitor.texts)


def test_a_killed_worker_fails_its_race_alone(enter: Enter) -> None:
    first, second = enter(**ENDLESS), enter(prompt="Next", max_new_tokens=40, lineup="kv")
    first.begin()
    second.run()
    for process in psutil.Process().children(recursive=True):
        if "spawn_main" in " ".join(process.cmdline()):
            os.kill(process.pid, signal.SIGKILL)
    expect(first.page.locator("body")).to_contain_text("SIGKILL")
    second.wait("ended")
    assert len(second.texts[0]) == 40
    first.begin()


def test_a_link_fills_in_the_settings_and_goes_with_the_next_race(
    enter: Enter, address: str
) -> None:
    visitor = enter(
        prompt="How & why?", lineup="kv\nlookup", temperature=0.5, chat="false", model="fake-loop"
    )
    visitor.page.locator("#share").click()
    link = visitor.page.locator("#link textarea, #link input")
    expect(link).to_have_value(re.compile("^http"))
    place = link.input_value()
    assert place.startswith(address)
    visitor.run()
    expect(link).to_be_hidden()
    visitor.wait("ended")
    visitor.visit(place)
    expect(visitor.prompt).to_have_value("How & why?")
    visitor.settings("Sampling")
    expect(visitor.page.get_by_label("Chat template")).not_to_be_checked()
    expect(visitor.page.locator("#settings textarea").first).to_have_value("kv\nlookup")


def test_tabs_have_addresses_and_the_history_opens_a_race_again(enter: Enter) -> None:
    """Also after a reload, with its texts; one's own settings stay until it is to run again. A tab
    that was opened before the settings are filled in stays.
    """
    early: list[Route] = []

    def hold(route: Route) -> None:
        early.append(route)

    visitor = enter(prompt="Long <b>one</b> 8", max_new_tokens=40, lineup="kv\nlookup")
    page = visitor.page
    visitor.run()
    visitor.wait("ended")
    texts = visitor.texts
    page.route("**/queue/join*", hold)
    page.goto(page.url.partition("?")[0])
    visitor.open("History")
    expect(page).to_have_url(re.compile("tab=history"))
    with page.expect_response("**/run/predict*"):  # what follows the settings
        for answer in early:
            answer.continue_()
    page.unroute("**/queue/join*")
    selected = page.get_by_role("tab", selected=True)
    expect(selected).to_have_text("History")
    page.go_back()
    expect(selected).to_have_text("Race")
    page.go_forward()
    page.locator("#races").get_by_text("Long <b>one</b> 8").locator("visible=true").click()
    expect(page.locator("#board .flow").first).to_have_text(texts[0])
    assert visitor.texts == texts
    expect(visitor.prompt).to_have_value(EXAMPLES[0].prompt)
    expect(visitor.board.locator(".asked q")).to_have_text("Long <b>one</b> 8")
    with page.expect_download() as saved:
        page.locator("#board .files summary").click()
        page.get_by_role("button", name="race.json").click()
    record = saved.value.path()
    visitor.board.get_by_role("button", name="Run again").click()
    expect(visitor.prompt).to_have_value("Long <b>one</b> 8")
    visitor.wait("ended")
    assert visitor.texts == texts
    page.locator("#board [type=file]").set_input_files(record)
    visitor.wait("recorded")
    assert visitor.texts == texts
    page.on("dialog", lambda dialog: dialog.accept())
    visitor.open("History")
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#races").get_by_text("Long")).to_have_count(0)


def test_an_example_sets_up_a_race(enter: Enter) -> None:
    visitor = enter()
    program = next(example for example in EXAMPLES if "{{" in example.prompt)
    visitor.page.get_by_role("button", name=program.label, exact=True).click()
    expect(visitor.prompt).to_have_value(program.prompt)
    visitor.run()
    visitor.wait("ended")
    assert len(visitor.columns) == len(program.lineup.splitlines())


def test_an_own_grammar_becomes_a_column_and_a_hostile_one_a_sentence(enter: Enter) -> None:
    """The hostile one by the button and by a race, while the worker lives on."""
    visitor = enter(grammar_text=HOSTILE, lineup="kv", max_new_tokens=20)
    error = visitor.page.locator(".toast-body.error")
    visitor.settings("Own grammar")
    visitor.page.get_by_role("button", name="Check").click()
    expect(error).to_contain_text("too big")
    visitor.page.locator("#settings .cm-content").fill('start: "maybe"')
    visitor.page.get_by_role("button", name="Use it in a column").click()
    lineup = visitor.page.locator("#settings textarea").first
    expect(lineup).to_have_value(re.compile("grammar=own"))
    visitor.run()
    visitor.wait("ended")
    assert visitor.texts[1] == "maybe"
    visitor.page.locator("#settings .cm-content").fill(HOSTILE)
    visitor.run()
    expect(visitor.board).to_contain_text("too big")
    visitor.wait("ended")
    assert [bool(text) for text in visitor.texts] == [True, False]


def test_the_plot_names_the_columns_of_the_race_on_the_board(enter: Enter) -> None:
    """Each by its colour, which is the line's."""
    visitor = enter(lineup="kv\nlookup", max_new_tokens=40)
    page = visitor.page
    page.get_by_role("button", name="Why?").click()
    names, lines = page.locator("#series span"), page.locator("#curve .plot_marks path")
    raced = ["measured passes", "KV reuse", "Speculative", "Lookahead", "Grammar"]
    for expected in (raced, ["KV reuse", "Prompt lookup"]):
        expect(names).to_have_text(expected)
        colours = [each.evaluate("s => s.style.getPropertyValue('--of')") for each in names.all()]
        expect(lines).to_have_count(len(expected))
        assert [line.get_attribute("stroke") for line in lines.all()] == colours
        visitor.run()
        visitor.wait("ended")


def test_a_preset_is_named_while_the_line_up_is_its_own(enter: Enter) -> None:
    visitor = enter()
    visitor.settings()
    preset, about = visitor.page.get_by_label("Line-ups to begin with"), PRESETS[6].about
    lineup = visitor.page.locator("#settings textarea").first
    preset.click()
    visitor.page.get_by_role("option", name=PRESETS[6].title).click()
    expect(lineup).to_have_value(PRESETS[6].lineup)
    expect(visitor.page.locator("#settings")).to_contain_text(about)
    lineup.fill(f"{PRESETS[6].lineup}\nlookup")
    expect(visitor.page.locator("#settings")).not_to_contain_text(about)
    expect(preset).to_have_value("")
    lineup.fill(PRESETS[6].lineup)
    expect(preset).to_have_value(PRESETS[6].title)


def test_what_is_out_of_sight_takes_no_focus(enter: Enter) -> None:
    """The closed settings have focus stops only while they are open."""
    visitor = enter()
    inside = "() => !!document.activeElement.closest('#settings .sidebar-content')"

    def stops() -> list[bool]:
        visitor.page.locator("body").click(position={"x": 1, "y": 1})
        taken = list[bool]()
        for _ in range(24):
            visitor.page.keyboard.press("Tab")
            taken.append(visitor.page.evaluate(inside))
        return taken

    assert not any(stops())
    visitor.settings()
    assert any(stops())


def test_what_cannot_run_is_an_error_and_no_markup(enter: Enter) -> None:
    visitor = enter(lineup="kv\n<b>bold</b>")
    visitor.run()
    expect(visitor.page.locator(".toast-body.error")).to_contain_text("<b>bold</b>")
    assert visitor.page.locator(".toast-body b").count() == 0


def test_a_benchmark_runs_its_rows_can_be_saved_and_stop_leaves_them(enter: Enter) -> None:
    page = enter(model="fake-loop", lineup="kv\nlookup", max_new_tokens=40).page
    page.get_by_role("tab", name="Benchmark").click()
    page.locator("#bench-prompts textarea").fill("One and one and\nTwo and two and\nThree\nFour")
    page.locator("#bench-run").click()
    table, status = page.locator("#bench-table"), page.locator("#bench-status")
    expect(table).to_contain_text("4 of 4")
    expect(status).to_contain_text(re.compile("fast|noisy"))
    with page.expect_download() as saved:
        page.locator("#bench-save").click()
    lines = saved.value.path().read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + 2 * 4
    page.locator("#bench-prompts textarea").fill("\n".join(["More of it"] * 200))
    page.locator("#bench-run").click()
    expect(status).to_contain_text(re.compile(r"[1-9]\d* of 200 prompts"))
    page.locator("#bench-stop").click()
    expect(table).to_contain_text("Prompt lookup")


def test_keys_go_from_run_to_stop_and_into_the_settings_and_back(enter: Enter) -> None:
    visitor = enter(width=390, **ENDLESS)
    page = visitor.page
    page.locator("#run").press("Enter")
    visitor.begin_writing()
    expect(page.locator("#stop")).to_be_focused()
    page.keyboard.press("Enter")
    visitor.wait("ended")
    expect(page.locator("#run")).to_be_focused()
    page.locator("#opener").press("Enter")
    expect(page.locator("#settings :focus")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(page.locator("#opener")).to_be_focused()


@pytest.mark.parametrize(("width", "theme"), [(380, "dark"), (1366, "light")])
def test_the_page_fits_and_is_accessible(enter: Enter, width: int, theme: str) -> None:
    """With a step, the figures, the code and the settings open."""
    visitor = enter(width=width, theme=theme, max_new_tokens=40)
    page = visitor.page
    visitor.run()
    visitor.wait("ended")
    page.get_by_role("button", name="Why?").click()
    page.get_by_role("button", name=CODE).click()
    expect(page.locator("#code")).to_contain_text("import")
    page.locator("[data-step]").nth(4).click()
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
    violations = violations_of(page)
    visitor.settings("Sampling")
    assert violations + violations_of(page) == []


def violations_of(page: Page) -> list[str]:
    """What axe complains of."""
    page.evaluate(FADED_IN)
    violations: list[dict[str, Any]] = Axe().run(page).response["violations"]
    return [
        f"{violation['id']}: {json.dumps([node['html'][:200] for node in violation['nodes']][:3])}"
        for violation in violations
    ]
