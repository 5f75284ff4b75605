"""Child processes that end with the one that started them."""

import ctypes
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from types import ModuleType

_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


def die_with_parent() -> None:
    """Have the kernel kill this process once the *thread* that started it ends, whatever this one
    does then: native code that holds the interpreter cannot notice anything by itself.

    On Linux alone; elsewhere it does nothing. A parent that has ended already is not noticed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


#: Starts children, in a thread that lasts as long as this process: those that serve a request, or
#: run a race, end sooner, and with them what asked for `die_with_parent`.
_LASTING = ThreadPoolExecutor(1, "starts children")


def spawn(process: BaseProcess) -> None:
    """Start a process of multiprocessing's. It does not import the program that starts it, page,
    gradio and all, and it ignores Ctrl-C, which is the app's to take, from its first moment on:
    before it can say so itself it imports for a second.
    """
    _LASTING.submit(_start, process).result()


def _start(process: BaseProcess) -> None:
    with ExitStack() as restored:
        restored.callback(sys.modules.__setitem__, "__main__", sys.modules["__main__"])
        sys.modules["__main__"] = ModuleType("__main__")
        if hasattr(signal, "pthread_sigmask"):
            resource_tracker.ensure_running()  # else the start does it, and takes the mask away
            before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
            restored.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        process.start()
