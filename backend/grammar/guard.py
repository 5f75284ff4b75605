"""What stands between the grammar engine's native code and the process that runs it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from backend.errors import DerbyError

_seconds = 0.0


def die_after(seconds: float) -> None:
    """From now on a call of the grammar engine that takes longer ends the process by SIGALRM.

    For workers, which are replaced: no call of native code can be interrupted otherwise, and one
    is known (`/a+/ /a+/`) that never returns. Only where there are POSIX timers.
    """
    global _seconds  # noqa: PLW0603 (a process has one alarm)
    _seconds = seconds if hasattr(signal, "setitimer") else 0.0


@contextmanager
def guarded() -> Iterator[None]:
    """Bound a call's time, and turn a native panic, which is no Exception, into a DerbyError."""
    if _seconds:
        signal.setitimer(signal.ITIMER_REAL, _seconds)
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise DerbyError(
            "The grammar made the grammar engine crash: simplify it or pick one that ships."
        ) from error
    finally:
        if _seconds:
            signal.setitimer(signal.ITIMER_REAL, 0)
