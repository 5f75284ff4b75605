"""What others did on the machine during a race is told, and the race itself is none of them."""

import subprocess
import sys
import time

import psutil

from backend.racing.ledger import Ledger


def spent(seconds: float) -> None:
    """Use so much processor time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_another_program_is_told_from_the_race_itself() -> None:
    """The race takes half a second of processor time, the other program three times that."""
    other = "import time\nwhile time.process_time() < 1.5: pass\n"
    ledger, begun = Ledger(), time.monotonic()
    with subprocess.Popen([sys.executable, "-c", other]) as program:
        spent(0.5)
        program.wait()
    found = ledger.conditions()
    assert found.cores > 0
    assert found.others <= 1
    # A share of all cores' time: with more cores or a slower machine it is a smaller one.
    assert found.others * psutil.cpu_count() * (time.monotonic() - begun) > 1
    assert 0 <= found.stolen <= 1
    assert found.page == 0, "no page started this process"


def test_nothing_is_made_up_of_no_time_at_all() -> None:
    found = Ledger().conditions()
    assert all(0 <= share <= 1 for share in (found.others, found.page, found.stolen))
