"""Child processes that end with the one that started them; memory given back to the system."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3  # of <malloc.h>
_LARGE = 1 << 17  # bytes; what the C library begins with


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


def spawn(process: BaseProcess) -> None:
    """Start a process of multiprocessing's, in a thread that lasts. It does not import the program
    that starts it, page, gradio and all, and it ignores Ctrl-C, which is the app's to take, from
    its first moment on: before it can say so itself it imports for a second.
    """
    from_lasting_thread(lambda: _spawn(process))


def _spawn(process: BaseProcess) -> None:
    with ExitStack() as restored:
        restored.callback(sys.modules.__setitem__, "__main__", sys.modules["__main__"])
        sys.modules["__main__"] = ModuleType("__main__")
        if hasattr(signal, "pthread_sigmask"):
            resource_tracker.ensure_running()  # else the start does it, and takes the mask away
            before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
            restored.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        process.start()


def share_heaps() -> None:
    """Have all threads of this process allocate from two heaps, and what is large from neither. The
    C library makes up to eight heaps for each core, and every one keeps what no other can use; and
    once something large was freed, it puts things of that size on a heap, where what is small and
    lasts soon lies above them. A server of short-lived threads grows with each visitor though none
    is remembered. Heaps that exist stay. On Linux with glibc alone.
    """
    set_limit = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if set_limit is not None:
        set_limit(_M_ARENA_MAX, 2)
        set_limit(_M_MMAP_THRESHOLD, _LARGE)


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
