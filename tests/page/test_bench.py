"""The benchmark on the page: a table that grows, a verdict, and rows to take away."""

from collections.abc import Callable

import pytest
from browser import Visitor
from playwright.sync_api import expect

from backend.errors import DerbyError
from backend.form import Form
from backend.limits import PUBLIC
from backend.offer import offer_of
from page.bench import plan_of

Enter = Callable[..., Visitor]


@pytest.mark.browser
def test_a_benchmark_runs_and_its_rows_can_be_saved(enter: Enter) -> None:
    page = enter(model="fake-loop", lineup="kv\nlookup", max_new_tokens=40).page
    page.get_by_role("tab", name="Benchmark").click()
    page.locator("#bench-prompts textarea").fill("One and one and\nTwo and two and\nThree\nFour")
    page.locator("#bench-run").click()
    table = page.locator("#bench-table")
    expect(table).to_contain_text("4 of 4")
    expect(table).to_contain_text("Prompt lookup")
    expect(page.locator("#bench-status")).to_contain_text("fast")
    with page.expect_download() as saved:
        page.locator("#bench-save").click()
    lines = saved.value.path().read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + 2 * 4


@pytest.mark.browser
def test_stop_keeps_what_was_measured(enter: Enter) -> None:
    page = enter(model="fake-slow", lineup="kv", max_new_tokens=20).page
    page.get_by_role("tab", name="Benchmark").click()
    page.locator("#bench-prompts textarea").fill("\n".join(["More of it"] * 200))
    page.locator("#bench-run").click()
    expect(page.locator("#bench-status")).to_contain_text("1 of 200 prompts")
    page.locator("#bench-stop").click()
    expect(page.locator("#bench-table")).to_contain_text("KV reuse")


def test_what_is_too_much_is_refused() -> None:
    offer, form = offer_of(("openvino",), limits=PUBLIC), Form().model_dump()
    assert len(plan_of("", form, offer).jobs) == 6
    for text in ("a\n" * 13, "a" * 300_000):
        with pytest.raises(DerbyError):
            plan_of(text, form, offer)
