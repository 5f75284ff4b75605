"""Every row of the soak at a few counts: the bars hold but those of seconds, and so does the
harness itself.
"""

import importlib

import pytest
from soak.report import as_json, as_markdown, at_most, none_of, noted, read_json, result, within
from soak.rows import ROWS

# At collection, before any row has started threads or a browser.
importlib.import_module("soak.fuzz")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.browser) if n == "network" else n for n in ROWS],
)
def test_a_row_at_its_short_size_holds_its_bars(name: str) -> None:
    found = ROWS[name].run(short=True)
    assert found.sound, as_markdown([found])


def test_a_report_tells_a_bar_that_is_not_held() -> None:
    held = result("a", "3 times", [noted("seen", 2.5), at_most("s", 1.0, 2.0)])
    broken = result("b", "once", [none_of("lost", ["x"])], ["x was lost"])
    late = result("c", "once", [within("until idle", 2.0, 1.0)])
    assert (held.passed, broken.passed, late.passed) == (True, False, False)
    assert (broken.sound, late.sound) == (False, True)
    told = as_markdown([held, broken])
    assert "| | s | 1.0 | at most 2 | passed |" in told
    assert "| | lost | 1 | none | **FAILED** |" in told
    assert "- x was lost" in told
    assert read_json(as_json([held, broken])) == [held, broken]
