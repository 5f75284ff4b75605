"""A page that is told to end does so, whichever of its threads hears of it."""

import ctypes
import signal
from pathlib import Path

import psutil
from soak.server import Server, until

SYS_TGKILL = 234  # x86-64


def test_ctrl_c_ends_the_page_whichever_thread_it_reaches(tmp_path: Path) -> None:
    """Now and then Ctrl-C did nothing: the system had given it to a thread beside the main one,
    which slept for an hour and looked only then whether there was a signal to act on.
    """
    with Server("--fake", cache=tmp_path) as server:
        family = server.family()
        others = [t.id for t in psutil.Process(server.process.pid).threads()]
        others.remove(server.process.pid)
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.syscall(SYS_TGKILL, server.process.pid, others[-1], signal.SIGINT) == 0
        until(lambda: server.process.poll() is not None)
        assert server.process.returncode == 0
        until(lambda: not any(child.is_running() for child in family))
