"""No process outlives the one that started it, however that one ends and whatever it does."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from deeds import GRAMMAR
from hosting import PATIENCE, alive, until

from backend.grammar.sandbox.parent import Sandbox
from backend.text import ByteTokenizer

ROOT = Path(__file__).resolve().parent.parent

#: An app whose worker is stuck in native code that no thread of the interpreter can leave, and
#: whose worker's sandbox has been halted.
STUCK = """
import sys
from deeds import HoldAll
from backend.racing.hosts.process import ProcessHost

host = ProcessHost()
for event in host.stream(HoldAll(sys.argv[1]), lambda: False):
    print(host.pid, flush=True)
"""


def test_a_killed_app_takes_its_worker_and_its_sandbox_along(tmp_path: Path) -> None:
    """The worker looked after its parent from a thread, which native code may keep from running;
    the sandbox looks once it has read what it is asked, and a halted one never.
    """
    note = tmp_path / "sandbox"
    paths = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    command = [sys.executable, "-c", STUCK, str(note)]
    with subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True
    ) as app:
        assert app.stdout is not None
        worker = int(app.stdout.readline())
        until(lambda: note.exists() and note.read_text())
        sandbox = int(note.read_text())
        assert alive(worker)
        assert alive(sandbox)
        app.kill()
        until(lambda: not alive(worker) and not alive(sandbox))


def test_a_sandbox_survives_the_thread_that_wanted_it() -> None:
    """The kernel ends it with the thread that started it, and requests' threads come and go."""
    sandbox = Sandbox()
    wanting = threading.Thread(target=sandbox.examine, args=(GRAMMAR, ByteTokenizer()))
    wanting.start()
    wanting.join()
    before = sandbox.pid
    sandbox.examine(GRAMMAR, ByteTokenizer())
    assert sandbox.pid == before
    sandbox.close()


@pytest.mark.parametrize(
    "end",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.thorough),
        pytest.param(signal.SIGKILL, marks=pytest.mark.thorough),
    ],
)
def test_an_app_that_is_ended_leaves_nothing_behind(end: signal.Signals, tmp_path: Path) -> None:
    """SIGTERM, by which a service manager or a container ends it, closed nothing in the app."""
    command = [sys.executable, "app.py", "--fake", "--port", "0"]
    environment = os.environ | {"DECODE_DERBY_CACHE": str(tmp_path)}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as app:
        assert app.stdout is not None
        assert app.stderr is not None
        assert any(re.search(r"http://\S+", line) for line in app.stdout)
        family = [each.pid for each in psutil.Process(app.pid).children(recursive=True)]
        worker = max(family, key=lambda pid: psutil.Process(pid).memory_info().rss)
        os.kill(worker, signal.SIGSTOP)
        app.send_signal(end)
        code = app.wait(PATIENCE)
        until(lambda: not any(map(alive, family)))
        assert code == (-end if end == signal.SIGKILL else 0)
        assert app.stderr.read() == ""
