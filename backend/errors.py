"""What a user can fix, as one sentence; anything else, as a reference to the log."""

import errno
import logging
import secrets
from collections.abc import Iterable

log = logging.getLogger(__name__)

#: What an operating system says when a file may not grow: no room, a quota, a limit on files.
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

#: What it says when a file may not be read or written.
NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class DerbyError(Exception):
    """Something the user can fix, in one sentence: the value, the limit and the remedy."""


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raise DerbyError unless low <= value <= high (NaN is refused too)."""
    if not low <= value <= high:
        raise DerbyError(f"{beyond(name, value, low, high)}.")


def beyond(name: str, value: object, low: float, high: float) -> str:
    """What is wrong with a value that does not lie between the two."""
    return f"{name} is {value!s:.60}; it must lie between {low} and {high}"


def either(names: Iterable[str]) -> str:
    """The names as a sentence has them: "a, b or c"."""
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


def unknown(what: str, value: object, known: Iterable[str]) -> DerbyError:
    """The error for a value that is none of those known."""
    return DerbyError(f"There is no {what} {value!r:.60} here: choose {either(known)}.")


def explain(error: BaseException) -> str:
    """One sentence for the user; anything that is not theirs to fix is logged with a reference."""
    if isinstance(error, DerbyError):
        return str(error)
    reason = "An error in this program, not in your input"
    if isinstance(error, MemoryError):
        reason = "The memory ran out: use fewer columns, a smaller model or a shorter text"
    if isinstance(error, OSError) and error.errno in NO_ROOM | NOT_ALLOWED:
        reason = "A file on the server cannot be read or written: its log says which"
    reference = secrets.token_hex(4)
    log.error("error %s: %s", reference, error, exc_info=error)
    return f"{reason} ({type(error).__name__}, reference {reference})."
