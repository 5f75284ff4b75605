"""The benchmark's tab, and the form that a browser keeps, over the fake engine."""

import json
import re
from pathlib import Path

import pytest
from browser import Visitor
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def test_a_benchmark_runs_on_a_file_and_its_results_are_saved(
    visitor: Visitor, tmp_path: Path
) -> None:
    """The file is read in the browser: nothing is uploaded."""
    page = visitor.page
    visitor.columns("kv", "lookup:k=3")
    visitor.tab("Sampling")
    page.get_by_label("Max new tokens").fill("24")
    page.keyboard.press("Escape")
    visitor.tab("Benchmark")
    questions = tmp_path / "questions.jsonl"
    lines = [{"category": c, "turns": [t]} for c, t in (("a", "One"), ("a", "Two"), ("b", "Three"))]
    questions.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    page.locator(".dd-file input").set_input_files(questions)
    expect(page.locator("#prompt-set")).to_have_value(questions.read_text("utf-8"))
    sketched = """() => {
      const look = () => {
        const { phase } = document.querySelector(".dd-benchmark").dataset;
        const drawn = document.querySelector(".dd-boxes div").textContent.includes("Another");
        if (phase !== "idle" && drawn) window.sketched = true;
      };
      const all = { childList: true, subtree: true, attributes: true };
      new MutationObserver(look).observe(document.querySelector(".dd-benchmark"), all);
    }"""
    page.evaluate(sketched)  # it stayed and turned blue, as if it were a result
    page.get_by_role("button", name="Start", exact=True).click()
    page.wait_for_selector('.dd-benchmark[data-phase="ended"]')
    assert page.evaluate("window.sketched") is None
    shown = page.locator(".dd-benchmark tbody th[scope=rowgroup]").all_inner_texts()
    assert shown == ["all prompts", "a", "b"]
    assert page.locator(".dd-box-half").count() == 1
    expect(page.locator(".dd-benchmark progress")).to_be_hidden()  # it stayed, full
    with page.expect_download() as download:
        page.get_by_role("link", name="Save benchmark.json").click()
    results = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
    assert {result["column"] for result in results} == {"KV reuse", "Prompt lookup (k=3)"}
    assert not any("upload" in url for url in visitor.requests)
    assert visitor.complaints == []


@pytest.mark.thorough
def test_a_benchmark_goes_on_through_a_reload_and_after_a_stop(visitor: Visitor) -> None:
    """Also if the form is another one by now."""
    page = visitor.page
    visitor.columns("kv", "lookup:k=3")
    visitor.tab("Sampling")
    page.get_by_label("Max new tokens").fill("16")
    visitor.tab("Model")
    visitor.choose("Model", "fake-slow")
    visitor.tab("Benchmark")
    page.locator("summary", has_text="Your own prompts").click()
    page.locator("#prompt-set").fill("\n".join(map(str, range(8))))
    page.get_by_role("button", name="Start", exact=True).click()
    status = page.locator(".dd-measured")
    expect(status).to_contain_text("Prompt 2 of 8")
    page.reload()
    visitor.tab("Benchmark")
    expect(status).to_contain_text(re.compile("Prompt [3-7] of 8"))
    page.get_by_role("button", name="Stop", exact=True).click()
    stopped = re.compile("Stopped after [2-7] of 8 prompts: Resume continues.")
    expect(status).to_have_text(stopped)
    visitor.columns("kv", "stateless")
    page.reload()
    visitor.tab("Benchmark")
    expect(status).to_have_text(stopped)
    names = page.locator(".dd-benchmark tbody th[scope=row]")
    measured = re.compile(r"^(KV reuse|Prompt lookup \(k=3\))$")
    expect(names.filter(has_text=measured)).to_have_count(2)
    assert page.locator("#prompt-set").input_value() == ""
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(status).to_have_text("8 of 8 prompts measured, each strategy alone.")
    expect(names.filter(has_text=measured)).to_have_count(2)
    page.evaluate("localStorage.setItem('decode-derby-benchmark', '{\"view\": {\"kept\": 1}}')")
    page.reload()
    visitor.tab("Benchmark")
    expect(page.locator("#benchmark-start")).to_be_visible()
    for name in ("Resume", "Stop"):  # there is nothing to go on with, or to stop
        expect(page.get_by_role("button", name=name, exact=True)).to_be_hidden()
    assert visitor.complaints == []


def test_a_benchmark_that_is_refused_midway_can_go_on(visitor: Visitor) -> None:
    """It stood there as if it ran, without Start or Resume, until the page was loaded anew."""
    page = visitor.page
    visitor.tab("Benchmark")
    page.get_by_role("button", name="Start with six built-in prompts").click()
    page.wait_for_selector('.dd-benchmark[data-phase="ended"]')
    view = page.evaluate("JSON.parse(localStorage.getItem('decode-derby-benchmark')).view")
    half = view | {"phase": "running", "left": "Stopped after 3 of 6 prompts: Resume continues."}
    told = "([name, detail]) => document.dispatchEvent(new CustomEvent(name, { detail }))"
    page.evaluate(told, ["dd-benchmark", half])
    page.locator("#benchmark-stop").focus()
    page.evaluate(told, ["dd-benchmark", {"alert": "No more today."}])
    page.evaluate(told, ["dd-end", ""])
    expect(page.locator(".dd-refused")).to_have_text("No more today.")
    expect(page.locator("#benchmark-resume")).to_be_visible()
    expect(page.locator("#benchmark-start")).to_be_focused()


@pytest.mark.thorough
def test_what_was_typed_and_chosen_is_there_after_a_reload(visitor: Visitor) -> None:
    """A reload reset everything once."""
    page = visitor.page
    page.get_by_label("Prompt", exact=True).fill("My own question")
    visitor.columns("kv", "lookup:k=3")
    visitor.tab("Sampling")
    page.get_by_label("Max new tokens").fill("77")
    page.get_by_label("Max new tokens").blur()
    page.wait_for_function(
        "() => { const kept = localStorage.getItem('decode-derby-form') || '';"
        " return kept.includes('My own question') && kept.includes('lookup:k=3')"
        " && kept.includes('77'); }"
    )
    page.reload()
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("My own question")
    expect(page.locator(".dd-card h3")).to_have_text(["KV reuse", "Prompt lookup"])
    visitor.tab("Sampling")
    expect(page.get_by_label("Max new tokens")).to_have_value("77")
    assert visitor.complaints == []
