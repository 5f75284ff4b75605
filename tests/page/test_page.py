"""The page in a real browser, over the fake engine and the app as its users start it."""

import json
import re
from collections.abc import Callable

import pytest
from browser import LONG, RACES, Visitor, serving
from playwright.sync_api import Browser, expect

from backend.engines.fake import STEEP_PASSES
from backend.grammar.sources import shipped
from backend.strategies.registry import DEFAULT_COLUMNS
from backend.web.examples import examples

pytestmark = pytest.mark.browser

Enter = Callable[..., Visitor]


def test_a_race_runs_to_its_end(visitor: Visitor, address: str) -> None:
    """Texts, figures, verdicts and the summary are there; nothing is fetched from elsewhere."""
    visitor.columns(*DEFAULT_COLUMNS)
    visitor.ask(LONG, tokens=64)
    visitor.wait_phase("ended")
    assert visitor.titles == ["Stateless", "KV reuse", "Speculative", "Lookahead", "Grammar"]
    assert visitor.states == ["done"] * 5
    plain = visitor.card("KV reuse").text
    assert len(plain) > 40
    for title in ("Speculative", "Lookahead"):
        assert visitor.card(title).text == plain
        assert visitor.card(title).part("state") == "\u2713 same text"
        assert "Identical to KV reuse (64 tokens)." in visitor.card(title).part("told")
    assert plain.startswith(visitor.card("Stateless").text)
    assert visitor.card("Grammar").text.startswith('{\n  "full_name": "')
    same = "Three of five texts are identical; Stateless stopped early."
    assert same in visitor.status
    visitor.page.get_by_role("button", name="Use in production").click()
    production = visitor.page.get_by_role("tab", name="Production", exact=True)
    expect(production).to_have_attribute("aria-selected", "true")
    visitor.close_settings()
    visitor.why("Figures")
    assert visitor.page.locator(".dd-result thead th").filter(visible=True).count() == 5
    for origin in ("drafted", "forced"):
        assert visitor.page.locator(f".dd-card .dd-{origin}").count() > 0
        expect(visitor.page.locator(f".dd-legend .dd-{origin}")).to_be_visible()
    # The target's own token after a draft gained nothing.
    bonus = visitor.page.locator(".dd-card .dd-bonus").first
    plain_look = visitor.page.locator(".dd-card .dd-sampled").first
    look = "(node) => { const s = getComputedStyle(node); return [s.backgroundColor, s.boxShadow] }"
    assert bonus.evaluate(look) == plain_look.evaluate(look)
    for origin in ("bonus", "fixed"):
        assert visitor.page.locator(f".dd-legend .dd-{origin}").count() == 0
    assert visitor.complaints == []
    # A page with an inline icon and its own server: no other host hears of the visit.
    assert {u for u in visitor.requests if not u.startswith((address, "data:", "blob:"))} == set()


def test_an_example_sets_up_a_whole_race(visitor: Visitor) -> None:
    """Prompt, columns and length, and what it is about; what runs then is what was set up."""
    page = visitor.page
    status, chosen = page.locator(".dd-status"), page.locator(".dd-examples [aria-pressed=true]")
    expect(chosen).to_have_text(examples()[0].label)
    assert page.locator(".dd-examples [aria-pressed]").filter(visible=True).count() == 5
    more = page.get_by_role("button", name="More examples")
    for example in (examples()[6], examples()[7]):
        more.click()
        page.get_by_role("button", name=example.label, exact=True).click()
        expect(chosen).to_have_text(example.label)
        expect(chosen).to_be_visible()  # the others are folded again
        assert page.locator(".dd-examples [aria-pressed]").filter(visible=True).count() == 6
        expect(page.get_by_label("Prompt", exact=True)).to_have_value(example.prompt)
        expect(page.locator(".dd-card")).to_have_count(len(example.columns))
        expect(status).to_have_text(example.about)
        visitor.tab("Columns")
        expect(page.get_by_label("Edit as text")).to_have_value("\n".join(example.columns))
        visitor.tab("Sampling")
        expect(page.get_by_label("Max new tokens")).to_have_value(str(example.tokens))
        visitor.close_settings()
    more.click()
    page.get_by_role("button", name="Person as JSON", exact=True).click()
    expect(page.locator(".dd-card")).to_have_count(5)
    page.get_by_label("Prompt", exact=True).press_sequentially(" ")
    expect(chosen).to_have_count(0)  # what stands there is no example any more
    page.locator("#run").click()
    visitor.wait_phase("ended")
    assert visitor.states == ["done"] * 5
    texts = [card.inner_text() for card in page.locator(".dd-flow").all()]
    assert all(text.startswith('{"name": "') for text in texts[1:])
    assert not texts[0].startswith("{")


def test_another_prompt_is_not_raced_with_an_examples_grammar(visitor: Visitor) -> None:
    """ "Why is the sky blue?" was answered by a person as JSON. A change to the example's own text
    keeps its columns, and so does a line-up that the visitor has chosen.
    """
    page = visitor.page
    prompt, run = page.get_by_label("Prompt", exact=True), page.locator("#run")
    prompt.fill(f"{examples()[0].prompt[:60]} Ann is 7.")
    visitor.tab("Columns")
    lineup = page.get_by_label("Edit as text")
    expect(lineup).to_have_value("\n".join(examples()[0].columns))
    visitor.close_settings()
    page.get_by_role("button", name=examples()[0].label, exact=True).click()
    prompt.fill("Why is the sky blue?")
    run.click()  # at once: the race is on the columns that go with the prompt
    visitor.wait_phase("ended")
    assert visitor.titles == ["Stateless", "KV reuse", "Speculative", "Lookahead", "Prompt lookup"]
    visitor.tab("Columns")
    expect(lineup).to_have_value("\n".join(examples()[3].columns))
    page.get_by_role("button", name="The five strategies", exact=True).click()
    expect(lineup).to_have_value("\n".join(examples()[0].columns))
    visitor.close_settings()
    prompt.fill("Why is the sea blue?")
    run.click()
    expect(page.locator(".dd-card h3").last).to_have_text("Grammar")
    visitor.wait_phase("ended")


@pytest.mark.thorough
def test_a_spoiled_race_is_run_again_as_it_was(visitor: Visitor) -> None:
    """The button appears where the view says that timings are spoiled; the keyboard reaches it."""
    visitor.ask(LONG, tokens=48)
    visitor.wait_phase("ended")
    before = visitor.card("KV reuse").text
    visitor.page.get_by_label("Prompt", exact=True).fill("Another question")
    shown = "const again = document.querySelector('.dd-again'); again.hidden = false; again.focus()"
    visitor.page.evaluate(shown)
    expect(visitor.page.get_by_role("button", name="Run again")).to_be_focused()
    old = visitor.page.locator(".dd-card").first.element_handle()
    visitor.page.keyboard.press("Enter")
    visitor.page.wait_for_function("(card) => !card.isConnected", arg=old)
    visitor.wait_phase("ended")
    assert visitor.card("KV reuse").text == before
    assert visitor.states == ["done"] * 5
    assert visitor.complaints == []


def test_what_cannot_work_is_not_there_and_old_doubts_are_gone(visitor: Visitor) -> None:
    """Replay began to play a race that still ran, and the last race's doubt stood above the one
    that ran.
    """
    page = visitor.page
    visitor.columns("kv")
    visitor.ask("{{select 'colour' 'red|blue'}}".replace("'", '"'))
    visitor.wait_phase("ended")
    page.evaluate("document.querySelector('.dd-doubt span').textContent = 'Noisy.'")
    visitor.endless()
    visitor.wait_decoding()
    expect(page.locator(".dd-doubt")).to_be_hidden()
    assert page.evaluate("location.search").startswith("?prompt="), "the settings, from the start"
    expect(page.locator(".dd-replay-place")).to_be_visible()
    expect(page.locator(".dd-replay-play")).to_be_hidden()
    visitor.stop()
    visitor.wait_phase("ended")
    expect(page.locator(".dd-replay-play")).to_be_visible()


def test_a_board_that_the_form_no_longer_asks_for_is_dimmed(visitor: Visitor) -> None:
    """Another prompt, an example, other columns; and not any more once they are back."""
    page, board = visitor.page, visitor.page.locator(".dd-board")
    visitor.columns("kv")
    visitor.ask("Hello", tokens=8)
    visitor.wait_phase("ended")
    expect(board).to_have_attribute("data-stale", "no")
    page.wait_for_timeout(700)  # as long as a form may take to be that of an opened race
    prompt = page.get_by_label("Prompt", exact=True)
    prompt.fill("Another")
    expect(board).to_have_attribute("data-stale", "yes")
    status = page.locator(".dd-status")
    expect(status).to_have_text("Press Run to race this. Below: the last race.")
    chosen = examples()[1]
    page.get_by_role("button", name=chosen.label, exact=True).click()
    expect(status).to_contain_text(chosen.about)  # it was not told beside a race
    prompt.fill("Something else")
    expect(status).not_to_contain_text(chosen.about)
    visitor.columns("kv")
    visitor.close_settings()
    visitor.ask("Hello", tokens=8)
    visitor.wait_phase("ended")
    page.wait_for_timeout(700)
    prompt.fill("Another")
    prompt.fill("Hello")
    expect(board).to_have_attribute("data-stale", "no")
    visitor.columns("kv", "lookup")
    expect(board).to_have_attribute("data-stale", "yes")
    visitor.close_settings()
    page.locator("#run").click()
    expect(board).to_have_attribute("data-stale", "no")


@pytest.mark.thorough
def test_a_grammar_is_looked_at_while_it_is_written(visitor: Visitor) -> None:
    """From a shipped one, to what is wrong with a change, to how far a text fits."""
    visitor.tab("Own grammar")
    visitor.choose("Start from", "date")
    own, tried = (visitor.page.get_by_label(f"{name}") for name in ("Your grammar", "Try a text"))
    sound, fits = (visitor.page.locator(f"#{name} textarea") for name in ("sound", "fits"))
    expect(own).to_have_value(shipped()["date"].text)
    expect(sound).to_have_value(re.compile("^It works"))
    tried.fill("2024-0x")
    expect(fits).to_have_value(re.compile("^Accepted up to character 6 of 7; 'x' cannot follow"))
    own.fill("(a|b")
    expect(sound).to_have_value(re.compile("regular expression is wrong"))
    expect(fits).to_have_value("")
    own.fill("(a|b)c")
    tried.fill("a")
    expect(fits).to_have_value("The whole text fits, and it may not end here.")


def test_a_flaw_in_the_form_is_one_alert(visitor: Visitor) -> None:
    """The earlier board stays, and the next good form takes the alert away."""
    visitor.ask("Hello", tokens=16)
    visitor.wait_phase("ended")
    before = visitor.card("KV reuse").text
    alert = visitor.page.get_by_role("alert")
    visitor.ask("Hello", tokens=99_999)
    expect(alert).to_have_text(re.compile("max new tokens is 99999; it must lie between 1 and"))
    assert visitor.card("KV reuse").text == before
    visitor.tab("Sampling")
    expect(alert).to_be_visible()
    visitor.page.get_by_label("Max new tokens").fill("8")
    expect(alert).to_be_hidden()  # it once stayed until the next race
    visitor.ask("Hello", tokens=8)
    visitor.wait_phase("ended")


@pytest.mark.thorough
def test_two_visitors_wait_in_line_and_keep_their_own_texts(enter: Enter) -> None:
    first, second = enter(), enter()
    first.endless()
    first.wait_decoding()
    second.ask("Another prompt", tokens=24)
    expect(second.page.locator(".dd-status")).to_have_text(
        "One race is ahead of yours; yours starts when it ends."
    )
    assert set(second.states) == {"queued"}
    first.stop()
    second.wait_phase("ended")
    first.wait_phase("ended")
    assert second.states == ["done"] * 5
    ours, theirs = first.card("KV reuse").text, second.card("KV reuse").text
    assert ours[:8] != theirs[:8]
    assert len(theirs) <= 24


@pytest.mark.thorough
def test_a_closed_tab_frees_the_line(enter: Enter) -> None:
    first, second = enter(), enter()
    first.endless()
    first.wait_decoding()
    second.ask("Another prompt", tokens=24)
    second.wait_phase("waiting")
    first.close()
    second.wait_phase("ended")
    assert second.states == ["done"] * 5


HOSTILE = '<img src=x onerror="window.hacked=1"></script>${alert(1)}{{constructor}}&lt;b&gt;'


def test_markup_is_never_interpreted(visitor: Visitor) -> None:
    """Neither in what the model writes, nor in an alert, nor in a failed column."""
    visitor.columns("kv", "grammar:grammar=own")
    visitor.tab("Own grammar")
    visitor.page.get_by_label("regex").check()
    own = visitor.page.get_by_label("Your grammar")
    own.fill(re.escape(HOSTILE))
    visitor.ask(HOSTILE, tokens=len(HOSTILE))
    visitor.wait_phase("ended")
    assert visitor.card("Grammar").text == HOSTILE

    visitor.tab("Own grammar")
    own.fill(f"({HOSTILE}")
    visitor.ask(HOSTILE)
    visitor.page.wait_for_selector(".dd-problem:not(:empty)")

    visitor.wait_phase("ended")
    visitor.tab("Model")
    visitor.choose("Model", "from the Hugging Face Hub")
    visitor.page.get_by_role("textbox", name="Model: Hub id").fill(HOSTILE)
    visitor.close_settings()
    visitor.page.locator("#run").click()
    expect(visitor.page.get_by_role("alert")).to_contain_text("<img src=x")
    assert visitor.page.locator("#board img, #board script, #board b").count() == 0
    assert visitor.page.evaluate("window.hacked") is None
    assert visitor.complaints == []


@pytest.mark.thorough
def test_dark_mode_is_kept(visitor: Visitor, address: str) -> None:
    visitor.page.get_by_role("button", name="Dark mode").click()
    visitor.page.goto(address)
    visitor.page.wait_for_selector(".dd-card")
    assert visitor.page.evaluate("document.body.classList.contains('dark')")
    visitor.page.get_by_role("button", name="Light mode").click()
    assert not visitor.page.evaluate("document.body.classList.contains('dark')")


@pytest.mark.model
@pytest.mark.thorough
def test_the_built_in_model_races(browser: Browser) -> None:
    """The app as it is started without options: real engine, real worker, equal texts. A step is
    looked into, and the race comes back from the history and is replayed.
    """
    with serving() as address:
        visitor = Visitor(browser, address)
        visitor.page.set_default_timeout(300_000)
        visitor.columns("stateless", "kv", "speculative", "lookahead", "lookup", "grammar")
        visitor.tab("Sampling")
        visitor.page.get_by_label("Most likely tokens").fill("5")
        visitor.ask("Repeat: one two three, one two three.", tokens=24, model="built-in")
        visitor.wait_phase("ended")
        assert visitor.states == ["done"] * 6
        plain = visitor.card("KV reuse").text
        assert plain
        for title in ("Speculative", "Lookahead", "Prompt lookup"):
            assert visitor.card(title).text == plain
        look_into(visitor)
        texts = visitor.page.locator(".dd-flow").all_text_contents()
        visitor.page.wait_for_function(f"{RACES}.length > 0")
        visitor.tab("History")
        visitor.page.locator(".dd-races a").click()
        expect(visitor.page.locator(".dd-recorded")).to_contain_text("Recorded on ")
        assert visitor.page.locator(".dd-flow").all_text_contents() == texts
        visitor.page.get_by_label("Speed of the replay").select_option("0.25")
        visitor.page.get_by_role("button", name="Replay", exact=True).click()
        expect(visitor.page.locator(".dd-board")).to_have_attribute("data-replay", "on")
        visitor.page.get_by_label("Speed of the replay").select_option("8")
        expect(visitor.page.locator(".dd-board")).to_have_attribute("data-replay", "off")
        assert visitor.page.locator(".dd-flow").all_text_contents() == texts
        assert visitor.complaints == []
        visitor.close()


def look_into(visitor: Visitor) -> None:
    """The inside of a step, with the most likely tokens, and the first difference."""
    page = visitor.page
    visitor.card("Speculative").root.locator(".dd-flow .dd-drafted").first.click()
    expect(page.locator(".dd-inspector-title")).to_contain_text("Speculative. Pass")
    expect(page.locator(".dd-inspector th").filter(has_text="most likely")).to_be_visible()
    tokens = page.locator(".dd-inspector caption", has_text="Committed").locator("..").locator("tr")
    for row in tokens.all()[1:]:
        assert row.locator("td").last.locator("code").count() == 5
        first = row.locator("td").last.locator("code").first.text_content()
        assert first == row.locator("code").first.text_content()  # greedily the most likely one
    page.get_by_role("button", name="First difference").click()
    expect(page.locator(".dd-inspector-title")).to_contain_text("Grammar. Pass")
    expect(page.locator(".dd-said")).to_contain_text("on it differs from KV reuse")


def test_a_program_shows_fixed_text_and_values(visitor: Visitor) -> None:
    visitor.columns("kv", "lookahead")
    visitor.ask('Colour: {{select "colour" "red|blue"}}. Done {{colour}}.')
    visitor.wait_phase("ended")
    values = json.loads(visitor.card("KV reuse").part("values"))
    assert values["colour"] in ("red", "blue")
    assert visitor.card("Lookahead").text == f"Colour: {values['colour']}. Done {values['colour']}."
    assert visitor.page.locator(".dd-card .dd-fixed").count() >= 2


def test_a_program_has_no_code_and_no_button_for_it(visitor: Visitor) -> None:
    """ "Show the code" could be pressed beside the sentence that there is none. The section shows
    what there is as it opens.
    """
    page = visitor.page
    visitor.columns("kv", "lookup")
    visitor.ask('Colour: {{select "colour" "red|blue"}}.')
    visitor.wait_phase("ended")
    expect(page.get_by_role("button", name="Use in production")).to_be_hidden()
    visitor.tab("Production")
    note = page.locator("#code-note textarea")
    expect(note).to_have_value(re.compile("ran a program"))
    shown = page.locator("#section-4")
    expect(shown.get_by_role("button", name=re.compile("code", re.IGNORECASE))).to_have_count(0)
    expect(page.locator("#code")).to_be_hidden()
    visitor.close_settings()
    visitor.ask("Hello", tokens=16)
    visitor.wait_phase("ended")
    page.get_by_role("button", name="Use in production").click()
    expect(page.locator("#code")).to_contain_text("import")


def test_code_is_raced_as_a_column(visitor: Visitor) -> None:
    page = visitor.page
    visitor.columns("kv", "lookup:k=4")
    visitor.ask("Hello", tokens=16)
    visitor.wait_phase("ended")
    page.get_by_role("button", name="Use in production").click()
    visitor.choose("Column", "Prompt lookup (k=4)")
    visitor.choose("Library", "vLLM")
    race = page.get_by_role("button", name="Race this code")
    expect(race).to_be_hidden()  # which has no columns
    visitor.choose("Library", "transformers")
    race.click()
    expect(race).to_be_hidden()
    page.reload()
    visitor.wait_restored()
    visitor.close_settings()
    page.locator("#run").click()
    expect(page.locator(".dd-card h3")).to_have_count(3)
    visitor.wait_phase("ended")
    # Its model is no real one, which the code says.
    visitor.tab("Production")
    visitor.choose("Column", "transformers (lookup=4)")
    expect(page.locator("#code-note textarea")).to_have_value(re.compile("failed"))
    assert visitor.complaints == []


@pytest.mark.thorough
def test_the_curve_shows_what_was_measured(visitor: Visitor) -> None:
    """A point for each width, the same figures as a table, and a disc for each that guessed."""
    page = visitor.page
    visitor.columns("kv", "lookup:auto=false", "lookahead:auto=off")
    visitor.tab("Model")
    page.get_by_label("Calibrate first").check()
    visitor.ask(LONG, tokens=48, model="fake-priced")
    visitor.wait_phase("ended")
    curve = page.locator(".dd-costs")
    visitor.why("Cost of a pass")
    place = curve.locator(".dd-costs-plot")
    points = place.locator('circle[r="3.5"]')
    expect(points).to_have_count(len(STEEP_PASSES))
    for width in (390, 1920):
        page.set_viewport_size({"width": width, "height": 1080})
        box = place.bounding_box()
        assert box
        assert 0 < box["x"] < box["x"] + box["width"] <= width
    expect(curve.locator(".dd-marks strong")).to_have_text(["Prompt lookup:", "Lookahead:"])
    assert "1 row: 1.00\u00d7 as long" in points.first.inner_html()
    rows = curve.locator("tbody tr").all()
    assert [int(row.locator("td").first.inner_text()) for row in rows] == list(STEEP_PASSES)
    assert place.aria_snapshot().count("img") == 1
    visitor.ask("Hello", tokens=8)
    visitor.wait_phase("ended")
    expect(curve).to_be_hidden()  # nobody knows what this model's passes cost
    assert visitor.complaints == []


@pytest.mark.thorough
def test_texts_and_code_are_copied_and_columns_are_those_of_the_last_race(
    visitor: Visitor,
) -> None:
    """Letter by letter, whatever the prompt holds; each column by a name of its own."""
    page = visitor.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    copied = "navigator.clipboard.readText()"
    visitor.tab("Production")
    note = page.locator("#code-note textarea")
    expect(note).to_have_value(re.compile("hybrid draft"))  # of the recorded race's fastest column
    visitor.columns("kv", "lookup:k=2", "lookup:k=4")
    visitor.ask(HOSTILE, tokens=24)
    visitor.wait_phase("ended")
    names = visitor.titles
    assert len(set(names)) == 3
    page.get_by_role("button", name="Copy the text of KV reuse").click()
    page.wait_for_selector(".dd-copy[data-copied]")
    assert page.evaluate(copied) == visitor.card("KV reuse").text
    visitor.tab("Production")
    column = page.get_by_role("combobox", name="Column", exact=True)
    expect(column).to_have_value(re.compile("|".join(map(re.escape, names))))  # the fastest one
    visitor.choose("Column", names[2])
    code = page.locator("#code .cm-content")
    expect(code).to_contain_text("hacked")
    page.get_by_role("button", name="Copy", exact=True).filter(visible=True).click()
    assert page.evaluate(copied) == "\n".join(code.locator(".cm-line").all_text_contents()).rstrip()
    assert page.evaluate("window.hacked") is None
    visitor.columns("kv", "lookup:k=3")
    visitor.close_settings()
    page.locator("#run").click()
    expect(page.locator(".dd-card")).to_have_count(2)
    visitor.wait_phase("ended")
    visitor.tab("Production")
    expect(column).to_have_value("KV reuse")  # the one that was chosen is gone
    assert visitor.complaints == []


@pytest.mark.parametrize(
    ("width", "height"),
    [
        (1366, 768),
        pytest.param(380, 800, marks=pytest.mark.thorough),
        pytest.param(1920, 1080, marks=pytest.mark.thorough),
    ],
)
def test_a_race_is_seen_while_it_runs(visitor: Visitor, width: int, height: int) -> None:
    """The first text stood at 1,068 of 768 pixels and at 1,947 of 800: on a screen of either size
    nothing changed while a race ran. All five lanes and Stop are in sight, and where there is room
    the texts, even if the settings had been open and the page scrolled. On a phone, the first lines
    of a text are.
    """
    page = visitor.page
    page.set_viewport_size({"width": width, "height": height})
    visitor.tab("Model")
    visitor.choose("Model", "fake-slow")
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.keyboard.press("Control+Enter")
    visitor.wait_decoding()
    expect(page.locator(".dd-replay-place")).to_be_visible()  # between the track and the texts
    page.wait_for_function(
        "(seen) => [...document.querySelectorAll(seen)].every("
        "(node) => { const { top, bottom, height } = node.getBoundingClientRect();"
        "return height > 5 && top >= 0 && bottom <= innerHeight; })",
        arg=".dd-lane, #stop" if width < 640 else ".dd-lane, .dd-text, #stop",
    )
    text = page.locator(".dd-text").first.bounding_box()
    assert text is not None
    assert text["y"] < height - 50
    assert page.locator("#settings[data-open=true]").count() == 0  # it would lie over them
    assert page.locator("#run").is_hidden()
    expect(page.locator(".dd-status")).to_have_text(re.compile("leads .* by|are level"))
    visitor.stop()
    visitor.wait_phase("ended")
    assert page.locator("#run").is_visible()
    assert page.locator("#stop").is_hidden()


#: In each frame of a race, by how many tokens a bar and its number are apart at most.
APART = """() => {
  window.apart = [];
  const look = () => {
    requestAnimationFrame(look);
    if (!document.querySelector('.dd-board[data-phase="racing"]')) return;
    const flag = Number(document.querySelector(".dd-flag").textContent.replace(/\\D/g, ""));
    const lanes = [...document.querySelectorAll(".dd-lane")];
    window.apart.push(Math.max(...lanes.map((lane) => {
      const rail = lane.querySelector(".dd-rail").getBoundingClientRect();
      const { right } = lane.querySelector(".dd-fill").getBoundingClientRect();
      const number = Number(lane.querySelector(".dd-count").textContent);
      return Math.abs((flag * (right - rail.left)) / rail.width - number);
    })));
  };
  look();
}"""


def test_a_bar_is_as_long_as_its_number_says(visitor: Visitor) -> None:
    """Bars were on their way for 0.3 s: the second's was longer than the leader's."""
    page = visitor.page
    page.set_viewport_size({"width": 1366, "height": 768})
    page.evaluate(APART)
    visitor.ask(LONG, tokens=400, model="fake-slow")
    page.wait_for_function("window.apart.length > 100", polling="raf")
    visitor.stop()
    visitor.wait_phase("ended")
    assert page.evaluate("Math.max(...window.apart)") < 1.5


def test_the_opening_race_says_why(visitor: Visitor) -> None:
    """Its reasons and what a pass costs were there after a race of one's own alone."""
    page = visitor.page
    page.wait_for_selector('.dd-board[data-phase="opening"]')
    page.get_by_text("Why?", exact=True).click()
    shown = {
        "Figures": ".dd-result table",
        "Cost of a pass": ".dd-costs-plot svg",
    }
    for name, drawn in shown.items():
        page.get_by_role("tab", name=name).click()
        expect(page.locator(drawn)).to_be_visible()


def test_a_page_just_opened_plays_a_recorded_race_until_run_replaces_it(
    browser: Browser, address: str
) -> None:
    """It was empty and grey. Who wants nothing to move sees the photo finish at once."""
    window = browser.new_context(reduced_motion="reduce")
    still = Visitor(window, address)
    expect(still.page.locator(".dd-recorded")).to_have_text(re.compile(r"^Recorded on .*\d{4}-"))
    expect(still.page.get_by_role("button", name="Race it here")).to_be_hidden()
    assert still.page.locator(".dd-board").get_attribute("data-replay") == "off"
    whole = still.page.locator(".dd-flow").all_inner_texts()
    assert all(whole)
    still.card("Speculative").root.locator(".dd-flow .dd-drafted").first.click()
    expect(still.page.locator(".dd-inspector-title")).to_contain_text("Speculative. Pass")
    still.close()
    visitor = Visitor(browser, address)
    page = visitor.page
    page.wait_for_selector('.dd-board[data-phase="opening"][data-replay="on"]')
    # It ends with the photo finish, behind which no lane moves.
    page.wait_for_selector('.dd-board[data-phase="opening"][data-replay="off"]', timeout=60_000)
    expect(page.locator(".dd-place", has_text="1st")).to_be_visible()
    assert page.locator(".dd-flow").all_inner_texts() == whole
    page.locator("#run").click()
    visitor.wait_phase("ended")
    expect(page.locator(".dd-recorded")).to_be_hidden()
    assert page.locator(".dd-flow").all_inner_texts() != whole
    assert visitor.complaints == []
    visitor.close()
