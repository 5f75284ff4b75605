"""The page's side of a cluster, on machines that are plain objects."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from threading import Thread

import pytest
from fleet import Fleet, host_of
from hosting import never, no_hanging, until

from backend.cluster.host import ClusterHost
from backend.events import Event, Failed, Finished, Placed, Started
from backend.kvcache.sources import Visitor
from backend.racing.commands import Command, ForgetVisitor
from backend.racing.hosts.host import Lease, Machines
from backend.racing.race import Race
from backend.strategies.column import default_column
from backend.types import AnswerSoFar, ModelSpec, Request
from backend.web.visitors import Visitors

RACE = Race(Request("Hi"), (default_column("kv"),) * 2, ModelSpec("fake", "fake"))
END = [Finished(0, "end of text", []), Finished(1, "end of text", [])]
MINE = Visitor("mine")


HOSTS: list[ClusterHost] = []


@pytest.fixture(autouse=True)
def _no_hanging() -> Iterator[None]:
    """Nor does a host go on after its test."""
    with no_hanging():
        yield
        while HOSTS:
            HOSTS.pop().close()


def reached(*fleets: Fleet) -> ClusterHost:
    """A host once it knows all machines of the first fleet."""
    host = host_of(*fleets)
    HOSTS.append(host)
    until(lambda: len(host.machines) == len(fleets[0].keys))
    return host


def held(host: ClusterHost, *commands: Command) -> Lease:
    lease = host.lease(commands or (RACE,))
    assert lease is not None
    return lease


class Racing:
    """A race that is streamed in a thread of its own, whatever the test does."""

    def __init__(self, host: ClusterHost, race: Race = RACE) -> None:
        self.events: list[Event] = []
        self.stopped = False
        self.lease = held(host, race)
        self._thread = Thread(target=self._stream, args=(race,), daemon=True)
        self._thread.start()

    def _stream(self, race: Race) -> None:
        self.events.extend(self.lease.stream(race, lambda: self.stopped))
        self.lease.release()

    def join(self) -> list[Event]:
        self._thread.join()
        return self.events

    @property
    def machine(self) -> str:
        until(lambda: self.events)
        assert isinstance(self.events[0], Placed)
        return self.events[0].name


def test_as_many_race_at_once_as_there_are_machines_and_events_are_not_crossed() -> None:
    fleet = Fleet("a", "b")
    host = reached(fleet)
    assert isinstance(host, Machines)
    first, second = Racing(host), Racing(host)
    assert host.lease((RACE,)) is None
    until(lambda: len(fleet.begun) == 2)
    runs = {machine: run for run, (machine, _) in fleet.begun.items()}
    for each, key in ((second, "b"), (first, "a")):
        fleet.tell(runs[key], [Started(0, 1, key)])
        fleet.tell(runs[key], END)
        fleet.end(runs[key])
        assert each.join()[1:] == [Started(0, 1, key), *END]
    assert (first.machine, second.machine) == ("node a", "node b")
    assert held(host) is not None


def test_who_goes_on_returns_to_their_machine_and_is_told_when_it_is_gone() -> None:
    fleet = Fleet("a", "b")
    host = reached(fleet)
    busy, mine = held(host), replace(RACE, scope=MINE)
    on_b = Racing(host, mine)
    until(lambda: fleet.begun)
    fleet.tell(1, END)
    fleet.end(1)
    on_b.join()
    busy.release()
    going_on = replace(mine, earlier=(AnswerSoFar((1,)),) * 2)
    home = held(host, going_on)
    assert next(iter(home.stream(going_on, never))) == Placed("node b", "", 0.0, 0, "")
    assert host.lease((going_on,)) is None, "a is free, but the caches are on b"
    fleet.have("a")
    until(lambda: len(host.machines) == 1)
    placed = next(iter(held(host, going_on).stream(going_on, never)))
    assert isinstance(placed, Placed)
    assert (placed.name, placed.note[:14]) == ("node a", "node b is gone")


def test_a_machine_that_cannot_go_on_is_not_called_gone() -> None:
    """Once, who went on with another model read that a machine was gone which was there."""
    fleet = Fleet("b")
    host = reached(fleet)
    mine = replace(RACE, scope=MINE, earlier=(AnswerSoFar((1,)),) * 2)
    held(host, mine).release()
    fleet.have("a", "b", without_engine="b")
    until(lambda: len(host.machines) == 2)
    placed = next(iter(held(host, mine).stream(mine, never)))
    assert isinstance(placed, Placed)
    assert placed.note == "node b cannot run this; its caches are computed again."


def test_a_lost_machine_ends_its_race_alone_and_what_had_ended_stays() -> None:
    fleet = Fleet("a", "b")
    host = reached(fleet)
    lost, other = Racing(host), Racing(host)
    until(lambda: len(fleet.begun) == 2)
    runs = {machine: run for run, (machine, _) in fleet.begun.items()}
    fleet.tell(runs["a"], END[:1])
    fleet.have("b")
    fleet.end(runs["a"], "it does not answer")
    ended, failed = lost.join()[1:]
    assert ended == END[0]
    assert isinstance(failed, Failed)
    assert failed.message == (
        "node a was lost (it does not answer): run the race again, on another machine."
    )
    assert failed.cause == "machine"
    assert host.lease((RACE,)) is None, "b races still, and a does not come back by itself"
    fleet.tell(runs["b"], END)
    fleet.end(runs["b"])
    assert other.join()[1:] == END
    fleet.have("b", "c")
    until(lambda: len(host.machines) == 2)
    assert Racing(host).machine == "node b"
    assert Racing(host).machine == "node c"
    assert host.facts().restarts["machine"] == 1


def test_a_lost_head_ends_every_race_and_is_reached_again() -> None:
    first, second = Fleet("a"), Fleet("z")
    host = reached(first, second)
    racing = Racing(host)
    until(lambda: first.begun)
    first.close()
    assert [type(event) for event in racing.join()[1:]] == [Failed, Failed]
    assert "was lost: trying to reach it again" in host.facts().preparing
    assert host.lease((RACE,)) is None
    until(lambda: host.machines)
    assert host.facts().preparing == ""
    assert Racing(host).machine == "node z"


def test_a_race_that_is_stopped_ends_though_its_machine_says_nothing() -> None:
    fleet = Fleet("a")
    host = reached(fleet)
    racing = Racing(host)
    until(lambda: fleet.begun)
    racing.stopped = True
    assert racing.join()[1:] == [Finished(0, "stopped", []), Finished(1, "stopped", [])]
    assert set(fleet.stopped) == {1}


def test_who_leaves_is_forgotten_wherever_they_raced_while_others_race() -> None:
    fleet = Fleet("a", "b")
    host = reached(fleet)
    mine = replace(RACE, scope=MINE)
    leases = [held(host, mine), held(host, mine)]
    leaving = held(host, ForgetVisitor("mine"))
    assert list(leaving.stream(ForgetVisitor("mine"), never)) == []
    assert sorted(machine for machine, _ in fleet.begun.values()) == ["a", "b"]
    assert list(held(host, ForgetVisitor("mine")).stream(ForgetVisitor("mine"), never)) == []
    assert len(fleet.begun) == 2, "nothing of theirs is known any more"
    leases[0].release()


def test_what_no_machine_has_is_refused_and_takes_none() -> None:
    host = reached(Fleet("a"))
    race = replace(RACE, target=ModelSpec("fake", "fake", device="cuda"))
    told = list(held(host, race).stream(race, never))
    assert [type(event) for event in told] == [Failed, Failed]
    assert "node a lacks the device cuda" in str(told[0])
    assert held(host) is not None


def test_the_line_fills_all_machines_and_waits_for_one_that_joins() -> None:
    """A visitor of a cluster without machines is told so, and their race begins once one joins."""
    fleet = Fleet()

    async def scene() -> None:
        host = host_of(fleet)
        visitors = Visitors(host)
        names = [f"visitor {number}" for number in range(5)]
        races = [visitors.watch(name, replace(RACE, request=Request(name))) for name in names]
        shown = [await anext(frames) for frames in races]
        assert [frame.ahead for frame in shown] == [0, 1, 2, 3, 4]
        async for frame in races[0]:
            if "no machine yet" in frame.board.preparing:
                break
        fleet.have("a", "b", "c")
        while len(fleet.begun) < 3:
            await asyncio.sleep(0.01)
        assert visitors.waiting == 2
        for run in range(1, 6):
            while run not in fleet.begun:
                await asyncio.sleep(0.01)
            fleet.tell(run, END)
            fleet.end(run)
        for name, frames in zip(names, races, strict=True):
            last = [frame async for frame in frames][-1]
            assert last.over
            assert last.race.request.prompt == name
            assert [score.state for score in last.board.scores] == ["done", "done"]
            assert last.board.placed is not None
            record = await asyncio.to_thread(visitors.record, name)
            assert record.machine.node == last.board.placed.name
        host.close()

    asyncio.run(asyncio.wait_for(scene(), 60))
