"""The board in an app of its own. It draws any moment of a race, and bar, number and texts are of
that moment; the end scales nothing; a step opens by click and keys; a noisy race has no verdict;
files are asked for and sent; nothing that a drawing or a text holds is markup.
"""

import copy
import json
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from browser import ROOT, board_app
from playwright.sync_api import Browser, Page, expect

from backend.offer import offer_of
from backend.records.file import load
from page.race import Run, unpacked

pytestmark = pytest.mark.browser

OPENING = ROOT / "assets" / "opening.json"
ENDED: dict[str, Any] = Run(load(OPENING), offer_of(("openvino",)), 1).draw()
HOSTILE = '<img src=x onerror="window.hacked=1"></script>${alert(1)}{{constructor}}&lt;b&gt;'

Draw = Callable[[dict[str, Any]], None]


def steps_of(column: dict[str, Any]) -> list[list[Any]]:
    return [json.loads(line) for line in column["steps"].splitlines()]


SPECULATIVE = steps_of(ENDED["columns"][2])


def at(moment: float, race: int = 7) -> dict[str, Any]:
    """The race while it runs, at a moment of all columns' clocks."""
    columns = list[dict[str, Any]]()
    for column in ENDED["columns"]:
        lines = column["steps"].splitlines(keepends=True)
        steps = "".join(line for line in lines if json.loads(line)[0] <= moment)
        now = {"steps": steps, "state": "decoding", "interval": None, "mark": "", "beside": ""}
        columns.append(column | now)
    over = {"race": race, "phase": "running", "finished": False, "leaders": [], "moment": moment}
    return {**ENDED, **over, "columns": columns}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds what the app draws."""
    file = tmp_path_factory.mktemp("board") / "drawing.json"
    file.write_text(json.dumps(ENDED | {"phase": "recorded"}), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def address(file: Path) -> Iterator[str]:
    """The app's."""
    with board_app(file) as place:
        yield place


@pytest.fixture
def page(address: str, browser: Browser) -> Iterator[Page]:
    window = browser.new_context(reduced_motion="reduce")
    page = window.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(address)
    expect(page.locator(".race")).to_have_attribute("data-phase", "recorded")
    yield page
    window.close()
    assert complaints == []


@pytest.fixture
def draw(page: Page, file: Path) -> Draw:
    def show(drawing: dict[str, Any]) -> None:
        file.write_text(json.dumps(drawing), encoding="utf-8")
        page.locator("#draw").click()
        expect(page.locator(".race")).to_have_attribute("data-phase", drawing["phase"])
        expect(page.locator(".status")).to_have_text(drawing["status"])

    return show


def seek(page: Page, share: int) -> None:
    page.locator(".moment").fill(str(share))


def numbers(page: Page) -> list[float]:
    texts = page.locator(".figure strong").all_inner_texts()
    return [float(text.rstrip("\N{MULTIPLICATION SIGN}")) if text else 0.0 for text in texts]


def bars(page: Page) -> list[float]:
    """What the bars' lengths say on the axis."""
    last = float(page.locator(".axis span").last.inner_text().rstrip("\N{MULTIPLICATION SIGN}"))
    return page.evaluate(
        "last => [...document.querySelectorAll('.track')].map((track) =>"
        " last * parseFloat(track.querySelector('.bar').style.width) / 100)",
        last,
    )


def visible(page: Page) -> list[str]:
    """The texts that can be seen."""
    return page.evaluate(
        "() => [...document.querySelectorAll('.flow')].map((flow) => [...flow.children].filter("
        "(node) => node.checkVisibility({visibilityProperty: true})).map("
        "(node) => node.textContent).join(''))"
    )


def text(steps: list[list[Any]]) -> str:
    return "".join(piece for step in steps for _, piece in step[2])


def drop(page: Page, record: str) -> None:
    page.evaluate(
        "record => { const data = new DataTransfer();"
        " data.items.add(new File([record], 'race.json'));"
        " document.querySelector('.race').dispatchEvent("
        "new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true})); }",
        record,
    )


def test_a_bar_is_as_long_as_its_number_at_every_moment(page: Page) -> None:
    """The number is the ratio of what was written; the texts are those of the same moment."""
    for share in (300, 700, 999, 1000):
        seek(page, share)
        clock = ENDED["moment"] * share / 1000
        for number, bar in zip(numbers(page), bars(page), strict=True):
            assert not number or bar == pytest.approx(number, abs=0.02)
        if share < 1000:
            then = [[s for s in steps_of(c) if s[0] <= clock] for c in ENDED["columns"]]
            assert visible(page) == [text(steps) for steps in then]
            expect(page.locator(".clock")).to_have_text(f"{clock:.2f} s")
            expect(page.locator(".status")).to_have_text(f"Recorded: {ENDED['status']}")
            expect(page.locator(".lane[data-winner=true]")).to_have_count(0)
    seek(page, 999)
    result = [column["speedup"] for column in ENDED["columns"]]
    assert numbers(page) == pytest.approx(result, rel=0.02, abs=0.01)
    seek(page, 1000)
    assert numbers(page) == pytest.approx(result, abs=0.006)
    assert visible(page) == [text(steps_of(column)) for column in ENDED["columns"]]
    seek(page, 20)
    assert set(numbers(page)) == {0, 1}  # too few tokens for ratios


def test_the_end_scales_nothing_and_explains_a_step(page: Page, draw: Draw) -> None:
    """Steps are added to those that are there, and the axis stays; in the end the pass of the most
    accepted guesses is open.
    """
    draw(at(1.0))
    page.evaluate("document.querySelector('.flow').firstChild.same = true")
    draw(at(ENDED["moment"]) | {"status": "Columns race."})
    axis, then = page.locator(".axis").inner_html(), bars(page)
    expect(page.locator(".step")).to_be_hidden()
    draw(ENDED | {"race": 7})
    assert page.locator(".axis").inner_html() == axis
    assert bars(page) == then
    assert page.evaluate("document.querySelector('.flow').firstChild.same")
    expect(page.locator(".lane[data-winner=true] strong").first).to_have_text("Speculative")
    best = max(len(s[3]["guesses"]) for s in SPECULATIVE if all_accepted(s))
    expect(page.locator(".step [data-fate=accepted]")).to_have_count(best)


def all_accepted(step: list[Any]) -> bool:
    return all(fate == "accepted" for _, _, fate, _ in step[3]["guesses"])


def test_a_step_opens_by_click_and_by_keys_which_stop_at_steps_alone(
    page: Page, draw: Draw
) -> None:
    """In front of and between a program's steps stands text that it gives."""
    given, (_, first, second, *_) = [0, 0, [["fixed", "Given: "]], None], SPECULATIVE
    steps = "".join(json.dumps(s) + "\n" for s in (given, first, given, given, second, given))
    draw(ENDED | {"race": 12, "columns": [ENDED["columns"][2] | {"steps": steps}]})
    panel, flow = page.locator(".step"), page.locator(".flow")
    title, following = panel.locator("strong"), panel.get_by_role("button", name="Next step")
    flow.locator("[data-step='1']").click()
    expect(title).to_have_text(f"Speculative, pass {first[3]['pass']}")
    expect(panel.locator("tr[data-fate]")).to_have_count(len(first[3]["guesses"]))
    expect(panel.locator("tr").last).to_contain_text("the model")
    following.press("Enter")
    expect(title).to_have_text(f"Speculative, pass {second[3]['pass']}")
    expect(following).to_be_disabled()
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    expect(flow).to_be_focused()
    for key, step in (("ArrowLeft", first), ("ArrowLeft", first), ("ArrowRight", second)):
        page.keyboard.press(key)
        expect(flow.locator(".chosen")).to_have_text(text([step]))
    page.keyboard.press("Enter")
    expect(title).to_have_text(f"Speculative, pass {second[3]['pass']}")


def test_origins_and_intervals_are_in_the_accessibility_tree(page: Page) -> None:
    """Tokens of one origin that a step committed are one node."""
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]

    def words(role: str, what: str) -> list[str]:
        nodes = [node for node in tree if node.get("role", {}).get("value") == role]
        return [node[what]["value"] for node in nodes if node.get(what, {}).get("value")]

    steps = [step for column in ENDED["columns"] for step in steps_of(column)]
    for origin, name in (("drafted", "guessed right"), ("forced", "forced by the grammar")):
        runs = sum(
            now == origin != before
            for *_, spans, _ in steps
            for before, (now, _) in zip(["", *(each for each, _ in spans)], spans, strict=False)
        )
        assert words("mark", "description").count(name) == runs > 0
    intervals = [column["interval"] for column in ENDED["columns"] if column["interval"]]
    names = [name for name in words("image", "name") if name.startswith("95% interval")]
    assert len(names) == len(intervals)


def test_the_legend_is_the_race_s_and_the_way_is_full_when_all_is_over(
    page: Page, draw: Draw
) -> None:
    legend, done = page.locator(".legend span"), page.locator(".done")
    expect(legend).to_have_count(5)
    assert done.evaluate("done => done.style.width") == "100%"
    plain = at(1.0, 13)
    draw(plain | {"columns": plain["columns"][1:2]})
    expect(legend).to_have_text(["Click a word to see its step."])
    written = len(steps_of(plain["columns"][1]))
    expect(page.locator(".goal")).to_have_text(f"{written} of 96 tokens")
    share = done.evaluate("done => parseFloat(done.style.width)")
    assert share == pytest.approx(100 * written / 96, abs=0.1)


@pytest.mark.parametrize("width", [390, 1366])
def test_labels_of_the_axis_stand_apart_and_within_it(page: Page, draw: Draw, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    for race, most in enumerate((1.2, 1.9, 3.4, 9, 45, 99), start=20):
        for name in ("KV reuse", "openvino-genai (int8-exact, lookup=4)"):
            columns = [column.copy() for column in ENDED["columns"]]
            columns[1]["name"], columns[2]["speedup"] = name, most
            draw(ENDED | {"race": f"{race} {name}", "columns": columns, "status": f"{most} {name}"})
            axis, *boxes = page.evaluate(
                "() => [...document.querySelectorAll('.axis, .axis span')]"
                ".filter((node) => node.checkVisibility({visibilityProperty: true}))"
                ".map((node) => node.getBoundingClientRect()).map(({left, right}) => [left, right])"
            )
            assert len(boxes) >= 2
            assert all(axis[0] - 1 <= left < right <= axis[1] + 1 for left, right in boxes)
            assert all(one[1] < other[0] for one, other in pairwise(sorted(boxes)))


def test_a_race_that_begins_is_brought_into_sight_once(page: Page, draw: Draw) -> None:
    page.set_viewport_size({"width": 390, "height": 600})
    draw(at(0.5, 15) | {"status": "It runs."})  # by a button below the board
    expect(page.locator(".status")).to_be_in_viewport(ratio=1)
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    then = page.evaluate("scrollY")
    draw(at(1.0, 15) | {"status": "It runs on."})
    assert page.evaluate("scrollY") == then > 0


def test_a_noisy_race_has_no_verdict(page: Page, draw: Draw) -> None:
    draw(ENDED | {"race": 8, "noisy": True, "leaders": [], "status": "Too noisy to tell."})
    expect(page.locator(".lane[data-winner=true]")).to_have_count(0)
    ranges = [c["interval"] for c in ENDED["columns"] if c["interval"]]
    figures = page.locator(".figure strong").all_inner_texts()
    assert sum("\N{EN DASH}" in figure for figure in figures) == len(ranges)


@pytest.mark.parametrize(
    ("step", "button", "event"),
    [
        ({"code": "", "column": "kv"}, "Race it", "next"),
        ({"code": "", "column": ""}, "Run again", "again"),
        ({"code": "run()\n", "column": ""}, "Copy code", None),
    ],
)
def test_under_the_verdict_stands_what_to_do(
    page: Page, draw: Draw, step: dict[str, str], button: str, event: str | None
) -> None:
    draw(ENDED | {"race": 8, "next": {"sentence": "Use it."} | step})
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator(".next").get_by_role("button", name=button).click()
    if event:
        expect(page.locator("#event textarea")).to_have_value(event)
    else:
        expect(page.locator(".next button")).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == step["code"]
    draw(ENDED | {"race": 9, "next": {"sentence": "", "code": "", "column": ""}})
    expect(page.locator(".next")).to_be_hidden()
    page.locator(".player").get_by_role("button", name="Run again").click()
    expect(page.locator("#event textarea")).to_have_value("again")


def test_files_are_asked_for_and_records_of_files_are_sent(
    page: Page, draw: Draw, tmp_path: Path
) -> None:
    """By the button, which keys reach, and dropped."""
    draw(ENDED | {"race": 9})
    for name in ("race.json", "race.md", "race.svg"):
        page.locator(".files summary").click()
        page.get_by_role("button", name=name).click()
        expect(page.locator("#event textarea")).to_have_value(name)
    record, event = OPENING.read_bytes(), page.locator("#event textarea")
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Open a file").press("Enter")
    chooser.value.set_files(OPENING)
    expect(event).to_have_value(re.compile("^.{1000,}$"))
    assert unpacked(event.input_value()) == record
    drop(page, "{}")
    expect(event).to_have_value(re.compile("^.{1,100}$"))
    assert unpacked(event.input_value()) == b"{}"
    assert all(visible(page))


def hostile(value: Any) -> Any:
    """The same with markup for every text."""
    if isinstance(value, dict):
        return {name: hostile(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [hostile(inner) for inner in value]
    return HOSTILE if isinstance(value, str) else value


def test_markup_is_never_interpreted(page: Page, draw: Draw) -> None:
    """Whichever field of a drawing holds it, and in a step's table."""
    drawing = hostile(copy.deepcopy(ENDED)) | {"race": 11, "phase": "ended", "noisy": True}
    drawing["columns"][0] |= {"speedup": None, "interval": None}
    for column, real in zip(drawing["columns"], ENDED["columns"], strict=True):
        column["steps"] = "".join(json.dumps(hostile(step)) + "\n" for step in steps_of(real))
    draw(drawing)
    expect(page.locator(".name strong").first).to_have_text(HOSTILE)
    for place in (".status", ".doubt", ".next span", ".asked q", ".asked span"):
        expect(page.locator(place)).to_contain_text(HOSTILE)
    page.locator(".flow").nth(2).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.locator(".step tr").nth(1)).to_contain_text(HOSTILE)
    expect(page.locator("#plain")).to_have_text(HOSTILE)
    assert page.locator("#board :is(img, script, b)").count() == 0
    assert page.evaluate("window.hacked") is None


def test_a_new_page_plays_its_race(address: str, browser: Browser) -> None:
    """Unless its visitor wants little motion."""
    page = browser.new_page()
    page.goto(address)
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    expect(page.get_by_role("button", name="Replay")).to_be_visible()
    assert visible(page) == [text(steps_of(column)) for column in ENDED["columns"]]
    page.close()
