"""Real Ray, real processes: two nodes on this machine, for loopback alone. `make test-cluster`."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from threading import Thread

import pytest
from hosting import never, no_hanging, until
from races import FAKE, board_after, events_of
from ray_nodes import SLOW, Nodes, ready, two_nodes

from backend.cluster.host import ClusterHost
from backend.cluster.start import cluster_host
from backend.events import Conditions, Event, Failed, Finished, Placed, Started, Step
from backend.kvcache.sources import Visitor
from backend.limits import Limits
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.strategies.column import default_column, parse_column
from backend.types import AnswerSoFar, ModelSpec, Request
from backend.web.visitors import Visitors

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.filterwarnings("default"),  # ray's own: not all of its files are closed
]

RACE = Race(Request("Hi", 24), (default_column("kv"), default_column("lookup")), FAKE)
LONG = replace(RACE, target=ModelSpec("fake-endless", "fake"), request=Request("Hi", 4000))


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with two_nodes() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def host(nodes: Nodes) -> Iterator[ClusterHost]:
    host = cluster_host(nodes.address, engines=("fake", "openvino"))
    until(lambda: ready(host) == ["one", "two"], SLOW)
    yield host
    host.close()


@pytest.fixture(autouse=True)
def _no_hanging() -> Iterator[None]:
    with no_hanging(300):
        yield


def told(host: ClusterHost, race: Race) -> list[Event]:
    return list(host.stream(race, never))


def texts(events: list[Event], columns: int) -> list[str]:
    return [score.text for score in board_after([default_column("kv")] * columns, events).scores]


def test_a_machine_races_as_this_process_would(host: ClusterHost) -> None:
    here = events_of(RACE)
    there = told(host, RACE)
    assert isinstance(there[0], Placed)
    assert there[0].name in ("one", "two")
    assert there[0].cores > 0
    assert texts(there, 2) == texts(here, 2)
    steps = [[(e.column, e.tokens) for e in each if isinstance(e, Step)] for each in (here, there)]
    assert sorted(steps[0]) == sorted(steps[1]), "nothing is lost, and nothing told twice"
    assert any(isinstance(event, Conditions) for event in there)


def test_races_of_a_hundred_visitors_are_neither_lost_nor_crossed(host: ClusterHost) -> None:
    async def scene() -> dict[str, int]:
        visitors = Visitors(host, Limits(waiting=100))
        raced: dict[str, int] = {}

        async def visit(number: int) -> None:
            prompt = f"I am visitor {number}"
            race = replace(RACE, request=Request(prompt, 8), columns=RACE.columns[:1])
            frames = [frame async for frame in visitors.watch(f"v{number}", race)]
            board = frames[-1].board
            assert frames[-1].over
            assert [score.text for score in board.scores] == texts(events_of(race, engines), 1)
            assert board.placed is not None
            raced[board.placed.name] = raced.get(board.placed.name, 0) + 1

        engines = LoadedModels()
        await asyncio.gather(*(visit(number) for number in range(100)))
        return raced

    raced = asyncio.run(scene())
    assert sum(raced.values()) == 100
    assert raced.keys() == {"one", "two"}


def test_going_on_returns_to_the_machine_of_the_caches(host: ClusterHost) -> None:
    mine = replace(RACE, scope=Visitor("goes on"), columns=(parse_column("kv:cache=session"),))
    first = told(host, mine)
    tokens = tuple(token for event in first if isinstance(event, Step) for token in event.tokens)
    going_on = replace(mine, earlier=(AnswerSoFar(tokens),))
    for _ in range(3):
        again = told(host, going_on)
        assert isinstance(again[0], Placed)
        assert isinstance(first[0], Placed)
        assert (again[0].name, again[0].note) == (first[0].name, "")


def test_a_killed_node_ends_its_race_alone_and_another_one_is_used_at_once(
    nodes: Nodes, host: ClusterHost
) -> None:
    third = nodes.join("three")
    until(lambda: ready(host) == ["one", "three", "two"], SLOW)
    races: list[list[Event]] = [[], [], []]
    stop = False

    def race(events: list[Event]) -> None:
        events.extend(host.stream(LONG, lambda: stop))

    threads = [Thread(target=race, args=(events,), daemon=True) for events in races]
    for thread in threads:
        thread.start()
    until(lambda: all(any(isinstance(e, Started) for e in events) for events in races))
    on = {events[0].name: events for events in races if isinstance(events[0], Placed)}
    assert on.keys() == {"one", "two", "three"}
    nodes.kill(third)
    lost = on["three"]
    until(lambda: sum(isinstance(event, Failed) for event in lost) == 2)
    sentences = {event.message for event in lost if isinstance(event, Failed)}
    assert len(sentences) == 1
    assert "three was lost" in sentences.pop()
    assert ready(host) == ["one", "two"]
    stop = True
    for thread in threads:
        thread.join()
    for name in ("one", "two"):
        assert [e.reason for e in on[name] if isinstance(e, Finished)] == ["stopped"] * 2
    assert texts(told(host, RACE), 2)[0]


@pytest.mark.model
def test_the_built_in_model_races_on_a_machine(host: ClusterHost) -> None:
    race = Race(Request("List three rivers.", 12), (default_column("kv"), default_column("lookup")))
    there = told(host, race)
    assert {type(event) for event in there if isinstance(event, Failed | Finished)} == {Finished}
    assert texts(there, 2) == texts(events_of(race), 2)
    assert any(isinstance(event, Started) and "openvino" in event.model for event in there)
