"""Calls to the grammar engine's native code: bounded in time, some in parallel to a pass."""

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from backend.errors import DerbyError

T = TypeVar("T")


class NativeCalls:
    """Bounds the time of native calls. A process makes only one of these, because it has only one
    alarm.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        """A call that takes longer than `seconds` ends the process by SIGALRM; 0: none does.

        For workers, which are replaced: no call of native code can be interrupted otherwise, and
        one is known (`/a+/ /a+/`) that never returns. Only where there are POSIX timers.
        """
        self._seconds = seconds if hasattr(signal, "setitimer") else 0.0
        # llguidance works without the interpreter lock. One thread: races run one at a time, and so
        # do their columns.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """Bound the time of what runs inside, and turn a native panic into a DerbyError.

        Inside another one it leaves that one's alarm alone.
        """
        arm = self._seconds > 0 and not signal.getitimer(signal.ITIMER_REAL)[0]
        if arm:
            signal.setitimer(signal.ITIMER_REAL, self._seconds)
        try:
            yield
        except BaseException as error:
            # A panic is no Exception, and its class cannot be imported.
            if type(error).__name__ != "PanicException":
                raise
            raise DerbyError(
                "The grammar made the grammar engine crash: simplify it or choose a ready-made one."
            ) from error
        finally:
            if arm:
                signal.setitimer(signal.ITIMER_REAL, 0)

    def start(self, call: Callable[[], T]) -> Callable[[], T]:
        """Begin a call while the caller's thread waits elsewhere; what is returned waits for it."""
        return self._thread.submit(call).result
