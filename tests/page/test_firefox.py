"""The replay page, opened from disk in Firefox, by Mozilla's own driver: playwright drives only
builds of its own, which no package registry has.
"""

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recordings import race_of

from backend.web.replay_page import replay_page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.thorough,
    # The driver leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

FIREFOX = Path("/usr/bin/firefox-esr")

#: What a script of a test can do: wait until something is so.
WAIT = """
const until = async (test) => {
  while (!test()) await new Promise((done) => setTimeout(done, 20));
};
const find = (selector) => document.querySelector(selector);
"""

#: A proxy that is not there: this Firefox reaches no server.
NO_NETWORK = {
    "network.proxy.type": 1,
    "network.proxy.http": "127.0.0.1",
    "network.proxy.http_port": 9,
    "network.proxy.ssl": "127.0.0.1",
    "network.proxy.ssl_port": 9,
}


class Firefox:
    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self.open = driver.navigate

    def run(self, script: str) -> Any:
        """What the body of an asynchronous function returns on the page."""
        inside = f"(async () => {{\n{WAIT}\n{script}\n}})()"
        whole = f"const done = arguments[0];\n{inside}.then(done, done);"
        return self._driver.execute_async_script(whole, sandbox=None)


@pytest.fixture(scope="module")
def firefox() -> Iterator[Firefox]:
    if not FIREFOX.exists():
        reason = f"there is no browser at {FIREFOX}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it imports what Python 3.13 no longer has
        from marionette_driver.marionette import Marionette
    driver = Marionette(bin=str(FIREFOX), headless=True, port=0, prefs=NO_NETWORK, gecko_log="-")
    try:
        driver.start_session()
        yield Firefox(driver)
    finally:
        driver.cleanup()


def test_a_replay_page_plays_without_a_server(firefox: Firefox, tmp_path: Path) -> None:
    record = race_of("kv lookup lookahead")
    file = tmp_path / "race.html"
    file.write_text(replay_page(record), encoding="utf-8")
    firefox.open(file.as_uri())
    whole = firefox.run(
        "await until(() => find('.dd-flow')?.textContent);"
        "window.problems = []; addEventListener('error', (e) => problems.push(e.message));"
        "addEventListener('securitypolicyviolation', (e) => problems.push(e.blockedURI));"
        "return [...document.querySelectorAll('.dd-flow')].map((flow) => flow.innerText);"
    )
    assert len(whole) == len(record.columns)
    assert all(whole)
    scrubbed = firefox.run(
        "const unit = find('.dd-replay-unit'), place = find('.dd-replay-place');"
        "unit.value = 'tokens'; unit.dispatchEvent(new Event('change', { bubbles: true }));"
        "place.value = 5; place.dispatchEvent(new Event('input', { bubbles: true }));"
        "await until(() => find('.dd-board').dataset.replay === 'on');"
        "return find('.dd-flow').innerText;"
    )
    assert len(scrubbed) < len(whole[0])
    assert whole[0].startswith(scrubbed)
    played = firefox.run(
        "find('.dd-replay-play').click();"
        "await until(() => find('.dd-board').dataset.replay === 'off');"
        "return find('.dd-flow').innerText;"
    )
    assert played == whole[0]
    title = firefox.run(
        "find('.dd-flow span').click();"
        "await until(() => find('.dd-inspector-title').textContent);"
        "return find('.dd-inspector-title').innerText;"
    )
    assert "KV reuse. Pass" in title
    assert firefox.run("return performance.getEntriesByType('resource').length;") == 0
    assert firefox.run("return window.problems;") == []
