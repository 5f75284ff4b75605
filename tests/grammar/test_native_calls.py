"""Native code that never returns ends its process; one that panics ends in a sentence."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from backend.errors import DerbyError
from backend.grammar.native_calls import NativeCalls
from backend.racing.hosts.process import cause_of_death

ROOT = Path(__file__).resolve().parents[2]
#: A busy loop stands for native code; that a real grammar can loop is the sandbox's tests' matter.
LOOP = """
from backend.grammar.native_calls import NativeCalls
calls = NativeCalls({seconds})
with calls.bounded():
    pass
print("alive", flush=True)
with calls.bounded():
    with calls.bounded():
        pass
    while {loop}:
        pass
print("done", flush=True)
"""


def ran(seconds: float, *, loop: bool) -> tuple[int, list[str]]:
    program = LOOP.format(seconds=seconds, loop=loop)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.split()


def test_a_call_that_never_returns_ends_a_process_that_asked_for_it() -> None:
    """A call inside another one, as the masks that `expected` computes, took the outer one's alarm
    away with its own: what the outer one did next could have run for ever.
    """
    code, said = ran(0.3, loop=True)
    assert (code, said) == (-signal.SIGALRM, ["alive"])
    assert cause_of_death(code) == "a grammar took longer than 10 s"


def test_calls_that_return_disarm_the_alarm() -> None:
    assert ran(0.3, loop=False) == (0, ["alive", "done"])
    assert ran(0.0, loop=False) == (0, ["alive", "done"])


def test_a_panic_is_a_sentence_and_nothing_else_is_touched() -> None:
    # As pyo3 defines it: no Exception.
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(DerbyError, match="made the grammar engine crash"), NativeCalls().bounded():
        raise panic
    with pytest.raises(KeyboardInterrupt), NativeCalls().bounded():
        raise KeyboardInterrupt
