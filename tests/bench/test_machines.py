"""A benchmark over machines, some of which are lost."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from time import monotonic

import pytest

from backend.bench.plan import Plan
from backend.bench.prompts import PROMPTS
from backend.bench.runner import run_on
from backend.bench.summary import measured, results
from backend.errors import DerbyError
from backend.events import Event, Failed, Placed
from backend.racing.commands import Command
from backend.racing.hosts.host import Lease
from backend.racing.hosts.inline import InlineHost
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request

LOST = "b was lost (it does not answer): run the race again, on another machine."
TARGETS = ModelSpec("fake", "fake"), ModelSpec("fake-loop", "fake")


class Machine:
    """A machine of its own; `lost` says of each race that it is asked for whether it is lost in
    it.
    """

    def __init__(self, name: str, lost: Callable[[int], bool]) -> None:
        self.name, self._host, self._lost = name, InlineHost(), lost
        self._held, self._races = threading.Lock(), count()

    def hold(self) -> bool:
        return self._held.acquire(blocking=False)

    def stream(self, command: Command, stopped: Callable[[], bool]) -> Iterator[Event]:
        yield Placed(self.name, "", 1.0, 0, "")
        if self._lost(next(self._races)):
            yield from (Failed(column, LOST, "machine") for column in range(command.width))
        else:
            yield from self._host.stream(command, stopped)

    def release(self) -> None:
        self._held.release()


class Machines:
    """Lends its machines in strict turns, so that which machine gets which job does not depend on
    which of them is faster.
    """

    def __init__(self, *machines: Machine) -> None:
        self._next = deque(machines)

    def lease(self, commands: Sequence[Command]) -> Lease | None:
        if not self._next[0].hold():
            return None
        self._next.rotate(-1)
        return self._next[-1]


def plan() -> Plan:
    columns = (parse_column("lookup:k=3"),)
    return Plan(PROMPTS[:6], columns, Request("-", 24), TARGETS, anywhere=True)


def test_every_job_counts_once_though_machines_are_lost() -> None:
    """What was lost comes back cold: its first race there does not count, either."""
    said, races = list[str](), list[int]()
    lost = Machine("b", lambda race: races.append(race) or race == 1)
    machines = Machines(Machine("a", lambda _: False), lost)
    rows = list(run_on(machines, plan(), [], said.append))
    assert sum(row.machine == "b" for row in rows) == len(races) - 3
    assert sorted(row.job for row in rows) == list(range(12))
    assert sum("was lost" in line for line in said) >= 1
    lines = [line for line in results(measured(plan(), rows)) if line.category == "all"]
    assert {(line.model, line.machine) for line in lines} == {
        (str(target), machine) for target in TARGETS for machine in ("all", "a", "b")
    }
    for target in TARGETS:
        own = [line for line in lines if line.model == str(target) and "lookup" in line.column]
        everywhere, *each = (line.prompts for line in own)
        assert everywhere == sum(each) == 6
        assert own[0].equal == 6


def test_what_is_measured_already_is_left_out_and_a_cold_machine_runs_once_more() -> None:
    races: list[int] = []
    machine = Machine("a", lambda race: bool(races.append(race)))
    rows = list(run_on(Machines(machine), plan(), [], str))
    assert len(races) == 13
    races.clear()
    machine = Machine("a", lambda race: bool(races.append(race)))
    assert [row.job for row in run_on(Machines(machine), plan(), rows[:-1], str)] == [rows[-1].job]
    assert len(races) == 2


class Crowd:
    """Any number of machines, on which races end only once they are stopped, or after a moment.
    `most` of them ran at once; after `leases` somebody presses Ctrl-C.
    """

    def __init__(self, seconds: float, leases: int) -> None:
        self.running = self.most = 0
        self._seconds, self._leases = seconds, leases

    def lease(self, commands: Sequence[Command]) -> Lease | None:
        self._leases -= 1
        if self._leases < 0:
            raise KeyboardInterrupt
        self.running += 1
        self.most = max(self.most, self.running)
        return self

    def stream(self, command: Command, stopped: Callable[[], bool]) -> Iterator[Event]:
        began = monotonic()
        while not stopped() and monotonic() - began < self._seconds:
            yield Placed("c", "", 1.0, 0, "")

    def release(self) -> None:
        self.running -= 1


def test_an_interrupted_benchmark_ends_at_once() -> None:
    """Ctrl-C waited for every race that ran."""
    crowd = Crowd(3600, leases=5)
    with pytest.raises(KeyboardInterrupt):
        list(run_on(crowd, plan(), [], str))
    assert (crowd.most, crowd.running) == (5, 0)


def test_a_server_is_asked_by_one_machine_at_a_time() -> None:
    """Its times were those of many requests at once."""
    crowd = Crowd(0.02, leases=99)
    given = replace(plan(), columns=(parse_column("@http://127.0.0.1:9"),))
    assert len(list(run_on(crowd, given, [], str))) == len(given.jobs)
    assert crowd.most == 1


def test_a_job_that_loses_three_machines_is_no_longer_tried() -> None:
    with pytest.raises(DerbyError, match="3 machines were lost at prompt 1"):
        list(run_on(Machines(Machine("a", lambda _: True)), plan(), [], str))
