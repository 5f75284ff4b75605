"""Native code that never returns ends its process; one that panics ends in a sentence."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from backend.errors import DerbyError
from backend.grammar.constraint import bounded
from backend.racing.hosts.process import cause_of_death

ROOT = Path(__file__).resolve().parents[2]
#: A busy loop stands for native code that never returns, sleep for a machine that is halted.
LOOP = """
import time
from backend.grammar.constraint import bounded, end_process_after
end_process_after(0.3)
with bounded():
    with bounded():
        pass
    time.sleep(0.6)
    print("alive", flush=True)
    while {loop}:
        pass
print("done", flush=True)
"""


def ran(*, loop: bool) -> tuple[int, list[str]]:
    command = [sys.executable, "-c", LOOP.format(loop=loop)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.split()


def test_a_call_that_never_returns_ends_its_process_and_waiting_does_not_count() -> None:
    """The timer was of clock time, and blamed a grammar for a machine that stood still."""
    assert ran(loop=True) == (-signal.SIGPROF, ["alive"])
    assert "grammar took longer" in cause_of_death(-signal.SIGPROF)


def test_calls_that_return_disarm_the_timer() -> None:
    assert ran(loop=False) == (0, ["alive", "done"])


def test_a_panic_is_a_sentence_and_nothing_else_is_touched() -> None:
    # As pyo3 defines it: no Exception.
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(DerbyError, match="simplify"), bounded():
        raise panic
    with pytest.raises(KeyboardInterrupt), bounded():
        raise KeyboardInterrupt
