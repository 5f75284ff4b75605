"""No process outlives the one that started it, however that one ends and whatever it does."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from race_runs import PATIENCE, alive, until

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_an_app_that_is_ended_leaves_nothing_behind(end: signal.Signals, tmp_path: Path) -> None:
    """SIGTERM, by which a service manager or a container ends it, closed nothing in the app. Its
    worker is stuck and can notice nothing.
    """
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
