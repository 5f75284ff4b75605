"""What a user can fix, as one sentence; anything else, as a reference to the log."""

import logging
import secrets

log = logging.getLogger(__name__)


class DerbyError(Exception):
    """Something the user can fix, said in one sentence: the value, the limit and the remedy."""


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raise DerbyError unless low <= value <= high (NaN is refused too)."""
    if not low <= value <= high:
        raise DerbyError(f"{name} is {value}; it must lie between {low} and {high}.")


def explain(error: BaseException) -> str:
    """One sentence for the user; anything that is not theirs to fix is logged with a reference."""
    if isinstance(error, DerbyError):
        return str(error)
    reference = secrets.token_hex(4)
    log.error("internal error %s", reference, exc_info=error)
    return (
        f"Something broke here, not in your input ({type(error).__name__}, reference {reference})."
    )
