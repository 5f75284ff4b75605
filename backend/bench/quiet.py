"""Measurements wait until other programs leave the machine alone, or say that they did not."""

import time
from collections.abc import Callable

from backend.events import Conditions
from backend.racing.ledger import Ledger
from backend.results.sentences import taken_by_others

#: Seconds of one look at the machine.
LOOK = 1.0

#: Share of the machine that others may take for it to count as quiet.
QUIET = 0.1


def look(seconds: float = LOOK) -> Conditions:
    """What others do on the machine while this process does nothing."""
    ledger = Ledger()
    time.sleep(seconds)
    return ledger.conditions()


def wait_for_quiet(
    seconds: int, say: Callable[[str], None], look: Callable[[], Conditions] = look
) -> None:
    """Wait until the machine is quiet, so many seconds at most, and say so if it does not."""
    for number in range(seconds):
        found = look()
        if found.others <= QUIET:
            return
        if not number:
            say(
                f"Waiting until the machine is quiet, {seconds} s at most: "
                f"{taken_by_others(found)}."
            )
    if seconds:
        say("The machine did not become quiet: only ratios can be trusted.")
