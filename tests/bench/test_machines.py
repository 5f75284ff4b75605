"""A benchmark over machines, some of which are lost."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count

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
    return Plan(PROMPTS[:4], columns, Request("-", 24), TARGETS, anywhere=True)


def test_every_job_counts_once_though_machines_are_lost() -> None:
    said: list[str] = []
    machines = Machines(Machine("a", lambda _: False), Machine("b", lambda race: race in (1, 4)))
    rows = list(run_on(machines, plan(), [], said.append))
    assert sorted(row.job for row in rows) == list(range(8))
    assert sum("was lost" in line for line in said) >= 1
    lines = [line for line in results(measured(plan(), rows)) if line.category == "all"]
    assert {(line.model, line.machine) for line in lines} == {
        (str(target), machine) for target in TARGETS for machine in ("all", "a", "b")
    }
    for target in TARGETS:
        own = [line for line in lines if line.model == str(target) and "lookup" in line.column]
        everywhere, *each = (line.prompts for line in own)
        assert everywhere == sum(each) == 4
        assert own[0].equal == 4


def test_what_is_measured_already_is_left_out_and_a_cold_machine_runs_once_more() -> None:
    races: list[int] = []
    machine = Machine("a", lambda race: bool(races.append(race)))
    rows = list(run_on(Machines(machine), plan(), [], str))
    assert len(races) == 9
    races.clear()
    machine = Machine("a", lambda race: bool(races.append(race)))
    assert [row.job for row in run_on(Machines(machine), plan(), rows[:-1], str)] == [rows[-1].job]
    assert len(races) == 2


def test_a_job_that_loses_three_machines_is_no_longer_tried() -> None:
    with pytest.raises(DerbyError, match="3 machines were lost at prompt 1"):
        list(run_on(Machines(Machine("a", lambda _: True)), plan(), [], str))
