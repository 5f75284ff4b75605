"""The replay page, opened from disk in Firefox, which is spoken to by its own remote protocol."""

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from recordings import race_of

from backend.web.replay_page import replay_page

pytestmark = pytest.mark.browser

FIREFOX = Path("/usr/bin/firefox-esr")

#: What a script of a test can do: wait until something is so.
WAIT = """
const until = async (test) => {
  while (!test()) await new Promise((done) => setTimeout(done, 20));
};
const find = (selector) => document.querySelector(selector);
"""


class Firefox:
    """A headless one. Messages are JSON behind their length and a colon (Marionette)."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._stream = self._socket.makefile("rb")
        self._number = 0
        self._message()  # a greeting
        self._ask("WebDriver:NewSession")

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def open(self, address: str) -> None:
        self._ask("WebDriver:Navigate", url=address)

    def run(self, script: str) -> Any:
        """What the body of an asynchronous function returns on the page."""
        inside = f"(async () => {{\n{WAIT}\n{script}\n}})()"
        whole = f"const done = arguments[0];\n{inside}.then(done, done);"
        return self._ask("WebDriver:ExecuteAsyncScript", script=whole, args=[])["value"]

    def _ask(self, command: str, **values: Any) -> Any:
        self._number += 1
        message = json.dumps([0, self._number, command, values])
        self._socket.sendall(f"{len(message)}:{message}".encode())
        _, _, error, result = self._message()
        assert error is None, error
        return result

    def _message(self) -> Any:
        length = b""
        while (byte := self._stream.read(1)) != b":":
            assert byte, "Firefox has ended"
            length += byte
        return json.loads(self._stream.read(int(length)))


@pytest.fixture(scope="module")
def firefox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    """One that reaches no server: it is told of a proxy that is not there."""
    if not FIREFOX.exists():
        reason = f"there is no browser at {FIREFOX}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    profile = tmp_path_factory.mktemp("firefox")
    settings = {
        "marionette.port": 0,
        "network.proxy.type": 1,
        "network.proxy.http": "127.0.0.1",
        "network.proxy.http_port": 9,
        "network.proxy.ssl": "127.0.0.1",
        "network.proxy.ssl_port": 9,
    }
    lines = [f'user_pref("{name}", {json.dumps(value)});' for name, value in settings.items()]
    (profile / "user.js").write_text("\n".join(lines), encoding="utf-8")
    command = [str(FIREFOX), "--headless", "--marionette", "--profile", str(profile), "--no-remote"]
    environment = os.environ | {"HOME": str(profile)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if "Listening on port" in line:
                    with closing(Firefox(int(line.split()[-1]))) as found:
                        yield found
                    break
            else:
                pytest.fail("Firefox ended before it listened")
        finally:
            process.terminate()


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
    assert "KV reuse. Step" in title
    assert firefox.run("return performance.getEntriesByType('resource').length;") == 0
    assert firefox.run("return window.problems;") == []
