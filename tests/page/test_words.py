"""How much there is to read on the page, without the answers."""

import pytest
from browser import Visitor

from backend.web.examples import opening

pytestmark = pytest.mark.browser

#: Words that may be in sight before a race, and after one.
BEFORE, AFTER = 120, 180

#: Those with a letter, the skip link among them. Answers are left out.
WORDS = r"""(() => {
  const count = (text) => (text.match(/\S*\p{L}\S*/gu) ?? []).length;
  const answers = [...document.querySelectorAll(".dd-flow")].map((node) => count(node.innerText));
  return count(document.body.innerText) - answers.reduce((sum, words) => sum + words, 0);
})()"""


@pytest.mark.parametrize(("width", "height"), [(1366, 768), (380, 800)])
def test_there_is_little_to_read_before_a_race_and_after_it(
    visitor: Visitor, width: int, height: int
) -> None:
    """There were 158 words before a race and 253 after it: lane and card explained each strategy, a
    card repeated its lane's verdict, and the chip beside Run the line below the texts.
    """
    page = visitor.page
    page.set_viewport_size({"width": width, "height": height})
    page.wait_for_selector('.dd-board[data-phase="opening"][data-replay="on"]')
    assert page.evaluate(WORDS) <= BEFORE  # in motion
    page.get_by_role("button", name="Back to the result").click()
    assert page.evaluate(WORDS) <= BEFORE
    page.get_by_role("button", name="Quote", exact=True).click()
    page.get_by_role("button", name="Extract", exact=True).click()
    visitor.wait_phase("idle")
    assert page.evaluate(WORDS) <= BEFORE
    visitor.open(opening())
    page.get_by_role("button", name="Copy a link").wait_for()
    assert page.evaluate(WORDS) <= AFTER
