"""Why a worker process ended: for its visitors a sentence, for its operator a count."""

import contextlib
import signal
from dataclasses import dataclass
from typing import Literal

#: Seconds that one call of the grammar engine may take; most take less than a thousandth of one.
GRAMMAR_DEADLINE = 10.0

Cause = Literal["stop", "halted", "hung", "grammar", "killed", "crashed", "not started", "closed"]


@dataclass(frozen=True, slots=True)
class Death:
    """`why` goes into a sentence, in brackets."""

    cause: Cause
    why: str


STOPPED_LATE = Death("stop", "it did not stop in time")
HALTED = Death("halted", "SIGSTOP: it was halted from outside")
CLOSED = Death("closed", "the app is ending")


def death_by(exitcode: int | None) -> Death:
    """What a process died of that ended by itself, or by somebody else."""
    if exitcode is None or exitcode >= 0:
        return Death("crashed", f"exit code {exitcode}")
    if exitcode == -signal.SIGALRM:
        return Death("grammar", f"a grammar took longer than {GRAMMAR_DEADLINE:g} s")
    if exitcode == -signal.SIGKILL:
        return Death(
            "killed",
            "SIGKILL: most likely the memory ran out, of which fewer columns, fewer tokens or a "
            "smaller model take less",
        )
    name = f"signal {-exitcode}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-exitcode).name
    return Death("crashed", name)
