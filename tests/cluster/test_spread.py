"""A benchmark over machines, some of which are lost."""

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest

from backend.bench.prompts import PROMPTS
from backend.cluster.spread import Comparison, Results, comparisons, joined_results, spread
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
    def __init__(self, *machines: Machine) -> None:
        self._machines = machines

    def lease(self, commands: Sequence[Command]) -> Lease | None:
        return next((machine for machine in self._machines if machine.hold()), None)


def wanted() -> list[Comparison]:
    columns = [parse_column("lookup:k=3")]
    return comparisons(PROMPTS[:4], columns, Request("-", 24), TARGETS)


def test_every_comparison_counts_once_though_machines_are_lost(tmp_path: Path) -> None:
    said: list[str] = []
    file = tmp_path / "found.jsonl"
    machines = Machines(Machine("a", lambda _: False), Machine("b", lambda race: race in (1, 4)))
    results = Results(file, wanted())
    spread(machines, wanted(), results, said.append)
    assert sorted((each.model, each.place) for each in results.joined) == sorted(
        each.key for each in wanted()
    )
    assert sum("was lost" in line for line in said) >= 1
    again = Results(file, wanted())
    assert sorted(map(repr, again.joined)) == sorted(map(repr, results.joined))
    lines = joined_results(again.joined)
    assert {(line.model, line.machine) for line in lines} == {
        (str(target), machine) for target in TARGETS for machine in ("all", "a", "b")
    }
    for target in TARGETS:
        own = [line for line in lines if line.model == str(target) and "lookup" in line.column]
        everywhere, *each = (line.prompts for line in own)
        assert everywhere == sum(each) == 4
        assert own[0].equal == 4


def test_it_goes_on_from_a_file_whose_writer_was_killed(tmp_path: Path) -> None:
    file = tmp_path / "found.jsonl"
    spread(Machines(Machine("a", lambda _: False)), wanted(), Results(file, wanted()), str)
    whole = file.read_text(encoding="utf-8")
    file.write_text(whole[:-40], encoding="utf-8")  # within the last line
    results = Results(file, wanted())
    assert len(results.joined) == len(wanted()) - 1
    races: list[int] = []
    machine = Machine("a", lambda race: bool(races.append(race)))
    spread(Machines(machine), wanted(), results, str)
    assert races == [0, 1], "what was left, and once to warm up"
    assert len(file.read_text(encoding="utf-8").splitlines()) == len(wanted())
    with pytest.raises(DerbyError, match="of another benchmark"):
        Results(file, wanted()[1:])


def test_a_comparison_that_loses_three_machines_is_no_longer_tried() -> None:
    with pytest.raises(DerbyError, match="3 machines were lost at prompt 1"):
        spread(Machines(Machine("a", lambda _: True)), wanted()[:1], Results(None, wanted()), str)
