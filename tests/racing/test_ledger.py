"""What others did on the machine during a race is told, and the race itself is none of them."""

import subprocess
import sys
import time

import psutil
import pytest
from races import FAKE

from backend.events import Conditions, Event, Step
from backend.racing import ledger
from backend.racing.ledger import Ledger
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.strategies.column import default_column
from backend.types import Request


def spent(seconds: float) -> None:
    """Use so much processor time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


BUSY = "import time\nwhile time.process_time() < 1.5: pass\n"

#: Starts BUSY and leaves it to itself, so that it is nobody's child any more.
APART = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', sys.argv[1]]).pid)"


def test_another_program_is_told_from_the_race_itself_and_from_its_own_children() -> None:
    """The race and a child of it take two seconds of processor time, the other program 1.5. What
    ran in children, such as another library's server in an experiment, was "other programs".
    """
    ledger, begun = Ledger(), time.monotonic()
    with subprocess.Popen([sys.executable, "-c", BUSY]) as child:
        spent(0.5)
        child.wait()
    core_seconds = psutil.cpu_count() * (time.monotonic() - begun)
    quiet = ledger.conditions().others * core_seconds
    apart = [sys.executable, "-c", APART, BUSY]
    pid = int(subprocess.run(apart, capture_output=True, text=True, check=True).stdout)
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.05)
    found = ledger.conditions()
    assert found.cores > 0
    assert found.others <= 1
    # A share of all cores' time: with more cores or a slower machine it is a smaller one.
    core_seconds = psutil.cpu_count() * (time.monotonic() - begun)
    assert found.others * core_seconds - quiet > 1


def test_a_look_that_finds_no_memory_ends_no_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that ran out of memory as it looked at the machine broke down with a traceback, when
    its column would have said in a sentence what was missing.
    """

    def starved() -> None:
        raise MemoryError

    monkeypatch.setattr(ledger, "LOOK", 0.0)
    book = Ledger()
    monkeypatch.setattr(psutil, "cpu_times", starved)
    assert book.turned() is None


def test_a_race_tells_that_the_machine_has_become_noisy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.racing.ledger.LOOK", 0.0)
    monkeypatch.setattr(Ledger, "conditions", lambda _: Conditions(2, 0.9))
    events: list[Event] = []
    race = Race(Request("x", 4), (default_column("kv"),), FAKE)
    race.run(LoadedModels(), events.append, lambda: False)
    places = [i for i, event in enumerate(events) if isinstance(event, Conditions)]
    assert len(places) == 2
    assert places[0] < next(i for i, event in enumerate(events) if isinstance(event, Step))
    assert places[1] == len(events) - 1
