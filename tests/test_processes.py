"""No process outlives the one that started it, however that one ends and whatever it does."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from xml.etree import ElementTree as ET

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

#: As many threads as a busy page has allocate at once; then 8 MiB are freed, and again allocated.
#: What the C library made for that.
HEAPS = """
import ctypes, sys, threading
from backend.processes import share_heaps

if sys.argv[2] == "shared":
    share_heaps()
c, together = ctypes.CDLL(None), threading.Barrier(16)
c.malloc.restype = c.fopen.restype = ctypes.c_void_p

def allocate():
    together.wait()
    c.malloc(ctypes.c_size_t(5000))
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
c.free(ctypes.c_void_p(c.malloc(ctypes.c_size_t(1 << 23))))
c.malloc(ctypes.c_size_t((1 << 23) - 1))
report = ctypes.c_void_p(c.fopen(sys.argv[1].encode(), b"w"))
c.malloc_info(0, report)
c.fclose(report)
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


def test_threads_share_two_heaps_and_what_is_large_is_on_neither(tmp_path: Path) -> None:
    """In an hour of 2,942 visitors the page's process grew by 13 % after its warm-up, though no
    object remembered them: what they had used was scattered over a heap for almost every thread.
    With two heaps, 17 MB of 263 lay freed between what was used, where large things had been.
    """

    def allocated(way: str) -> tuple[int, int]:
        """Heaps, and bytes beside them."""
        report = tmp_path / way
        command = [sys.executable, "-c", HEAPS, str(report), way]
        subprocess.run(command, cwd=ROOT, check=True, timeout=PATIENCE)
        root = ET.fromstring(report.read_text())  # noqa: S314 (the C library's)
        beside = sum(int(e.attrib["size"]) for e in root.findall("total[@type='mmap']"))
        return len(root.findall("heap")), beside

    (heaps, beside), (usual_heaps, usually_beside) = map(allocated, ("shared", "as it comes"))
    assert heaps <= 2 < usual_heaps
    assert beside >= 1 << 23 > usually_beside
