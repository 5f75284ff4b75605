"""A Space's page is a frame of another site's page, which may refuse it storage and clipboard."""

from collections.abc import Iterator

import pytest
from browser import expect, launched, serving
from playwright.sync_api import FrameLocator, Page

pytestmark = [pytest.mark.browser, pytest.mark.thorough]

SPACE = {"SPACE_ID": "me/derby", "SPACE_HOST": "me-derby.hf.space"}
#: What the Hub allows a Space's frame; of permissions, nothing here.
SANDBOX = "allow-downloads allow-forms allow-modals allow-popups allow-same-origin allow-scripts"
HUB = "https://huggingface.co/spaces/me/derby"
REFUSED = """
for (const name of ["localStorage", "sessionStorage"])
  Object.defineProperty(window, name, { get() { throw new DOMException("refused"); } });
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving("--fake", variables=SPACE) as found:
        yield found


@pytest.fixture
def hub(address: str) -> Iterator[Page]:
    """A page of another site that shows ours, in a window as high as most."""
    # A page of the network may not show one of this machine, which a test's is.
    with launched("--disable-features=LocalNetworkAccessChecks") as browser:
        page = browser.new_page(viewport={"width": 1200, "height": 800})
        page.set_default_timeout(30_000)
        page.add_init_script(REFUSED)
        frame = f'<iframe src="{address}" sandbox="{SANDBOX}" width="100%" height="700"></iframe>'
        page.route("https://huggingface.co/**", lambda route: route.abort())
        page.route(HUB, lambda route: route.fulfill(content_type="text/html", body=frame))
        page.goto(HUB)
        yield page


def test_a_race_runs_in_a_frame_without_storage_and_is_carried_away_without_clipboard(
    hub: Page,
) -> None:
    errors: list[str] = []
    hub.on("pageerror", lambda error: errors.append(str(error)))
    ours: FrameLocator = hub.frame_locator("iframe")
    ours.locator(".dd-card").first.wait_for()
    ours.get_by_label("Prompt", exact=True).fill("Hello")
    ours.locator("#run").click()
    ours.locator('.dd-board[data-phase="ended"]').wait_for()
    ours.get_by_role("button", name="Copy a link").click()
    field = ours.locator(".dd-export input")
    expect(field).to_be_visible()
    assert "?prompt=Hello&" in field.input_value()
    assert errors == []


def test_a_frame_that_grows_with_its_page_changes_nothing_and_hides_no_alert(hub: Page) -> None:
    """The Hub makes frames as high as their pages. Texts went by the window's height, so the page
    grew once more; and an alert at its lower edge was out of sight.
    """
    ours = hub.frame_locator("iframe")
    text = ours.locator(".dd-text").first
    ours.locator("#run").click()
    ours.locator('.dd-board[data-phase="ended"]').wait_for()
    before = text.evaluate("(text) => text.clientHeight")
    hub.evaluate("document.querySelector('iframe').height = 3000")
    ours.locator(":root").evaluate("() => new Promise(requestAnimationFrame)")
    assert text.evaluate("(text) => text.clientHeight") == before
    ours.get_by_label("Prompt", exact=True).fill(" ")
    ours.locator("#run").click()
    alert = ours.locator(".dd-alert").first
    expect(alert).not_to_be_empty()
    box = alert.bounding_box()
    assert box is not None
    assert 0 <= box["y"] < 800
