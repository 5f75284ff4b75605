"""ZeroGPU's own package, which forks and asks for a GPU, against a stub of what lends one."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import families
import pytest

pytestmark = pytest.mark.spaces

ROOT = Path(__file__).resolve().parents[2]
ASKED: list[tuple[str, dict[str, list[str]]]] = []


class Lender(BaseHTTPRequestHandler):
    """Lends a GPU twice, and then says that the quota is used up."""

    def do_POST(self) -> None:
        url = urlsplit(self.path)
        ASKED.append((url.path, parse_qs(url.query)))
        lent = sum(path == "/schedule" for path, _ in ASKED)
        answer: dict[str, object] = {}
        if url.path == "/schedule":
            gpu = {"idle": True, "nvidiaIndex": 0, "nvidiaUUID": "none", "allowToken": str(lent)}
            answer = gpu if lent < 3 else {"left": 5, "wait": 3600}
        body = json.dumps(answer).encode()
        self.send_response(429 if "left" in answer else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def lender() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Lender)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_race_runs_in_the_packages_fork_stops_and_is_refused(lender: str, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    families.make("llama", folder)
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    zero = {"SPACES_ZERO_GPU": "true", "SPACES_ZERO_DEVICE_API_URL": lender}
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "zero_gpu_program.py"), str(folder)],
        env=os.environ | zero | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["devices"] == ["cuda:0"]
    assert told["texts"]["0"] == told["texts"]["1"]
    assert told["texts"]["0"]
    assert told["ends"] == ["stopped", "stopped"]
    assert len(told["refused"]) == 2
    assert "device CPU" in told["refused"][0]
    paths_asked = [path for path, _ in ASKED]
    assert paths_asked == ["/schedule", "/allow", "/release", "/schedule", "/release", "/schedule"]
    assert ASKED[0][1]["durationSeconds"] == ["600"]
