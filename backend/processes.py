"""Child processes that end with the one that started them; memory given back to the system."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


def die_with_parent() -> None:
    """Have the kernel kill this process once the *thread* that started it ends, whatever this one
    does then: native code that holds the interpreter cannot notice anything by itself.

    On Linux alone; elsewhere it does nothing. A parent that has ended already is not noticed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def from_lasting_thread(start: Callable[[], T]) -> T:
    """Start a child process in a thread that lasts as long as this process, for `die_with_parent`:
    threads that serve a request, or run a race, end sooner.
    """
    return _LASTING.submit(start).result()


def give_memory_back() -> None:
    """Return to the system what this process has freed: the C library keeps it for later use, by
    the size of a visitor's page, and a server that lasts seems to grow. On Linux with glibc alone.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def _fresh_thread() -> None:
    global _LASTING  # noqa: PLW0603 (a fork has its parent's memory, but none of its threads)
    _LASTING = ThreadPoolExecutor(1, "starts children")


_LASTING: ThreadPoolExecutor
_fresh_thread()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fresh_thread)
