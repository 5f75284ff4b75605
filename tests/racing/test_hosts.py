"""Hosts keep one contract: the same texts wherever a race runs, an end for every column and only
one, a stop with its pass, one race at a time. A worker may hang, fail to start or die at any
moment: its columns say so in a sentence, the next race works, and nothing is left behind.
"""

import os
import random
import signal
import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace

import psutil
import pytest
from fake_races import Break, FakeRace, HoldInterpreter, Wait, aborting, preparing
from race_runs import PATIENCE, alive, board_after, ends, streamed, until

from backend.events import Event, Failed, Finished, Prefilled, Preparing, Started, Step
from backend.racing import hosts
from backend.racing.hosts import Host, ProcessHost
from backend.racing.race import Race
from backend.strategies.column import parse_column
from backend.strategies.registry import DEFAULT_COLUMNS
from backend.types import ModelSpec, Request

COLUMNS = tuple(map(parse_column, DEFAULT_COLUMNS[:4]))
SHORT = Race(Request("Who is it?", max_new_tokens=25), COLUMNS, ModelSpec("fake", "fake"))
# Twenty milliseconds a step and thousands of tokens, of which none ends the text.
ENDLESS = Race(Request("Who?", max_new_tokens=4000), COLUMNS, ModelSpec("fake-endless", "fake"))
LONG_PROMPT = replace(ENDLESS, request=Request("who " * 950, max_new_tokens=100))
SOON = 300  # events that may still be on their way when a race is stopped
DONE = {0: Finished(0, "end of text", [])}


def stopped_ends(race: Race) -> dict[int, Event]:
    return {i: Finished(i, "stopped", []) for i in range(len(race.columns))}


def assert_works(host: Host) -> None:
    last = ends(streamed(host, SHORT))
    assert sorted(last) == list(range(len(COLUMNS)))
    assert all(isinstance(event, Finished) for event in last.values())


@pytest.fixture(autouse=True)
def no_hanging() -> Iterator[None]:
    """A host that breaks its promises may make its reader wait for ever: fail the test instead."""

    def fail(*_: object) -> None:
        pytest.fail("the host keeps its reader waiting")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(int(6 * PATIENCE))
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def worker() -> Iterator[ProcessHost]:
    with closing(ProcessHost()) as host:
        yield host


@pytest.fixture(params=["inline", "process"])
def host(request: pytest.FixtureRequest) -> Generator[Host]:
    """However long a pass takes, a worker that answers at all is not replaced."""
    if request.param != "process":
        yield Host()
        return
    shared: ProcessHost = request.getfixturevalue("worker")
    before = shared.pid
    yield shared
    assert shared.pid == before


def test_every_host_writes_the_same(host: Host) -> None:
    def texts(host: Host) -> list[list[int]]:
        return [score.tokens for score in board_after(race.columns, streamed(host, race)).scores]

    others = COLUMNS[1:]  # Stateless ends at the photo finish, which is a matter of time
    race = replace(SHORT, columns=(*others, parse_column("speculative:draft=fake-draft,k=2")))
    assert texts(host) == texts(Host())


@pytest.mark.parametrize("kind", [Step, Prefilled, Started])
def test_a_stop_ends_every_column_as_stopped(host: Host, kind: type[Event]) -> None:
    race, seen, late = LONG_PROMPT if kind is Prefilled else ENDLESS, list[Event](), 0
    stop = threading.Event()
    for event in streamed(host, race, stop.is_set):
        late += stop.is_set()
        assert late < SOON, "the stop did not reach the race"
        seen.append(event)
        if isinstance(event, kind):
            stop.set()
    if kind is Prefilled:
        assert not any(isinstance(event, Step) for event in seen)
    assert ends(seen) == stopped_ends(race)
    assert_works(host)


def test_an_error_of_the_race_itself_ends_each_running_column_once(host: Host) -> None:
    """Columns that had ended were failed as well, and a complete text was shown as an error."""
    last = ends(streamed(host, Break()))
    assert sorted(last) == [*range(5)]
    assert last.pop(1) == Finished(1, "token limit", [])
    assert last.pop(3) == Failed(3, "Its own error.")
    assert all("ZeroDivisionError" in getattr(event, "message", "") for event in last.values())


def test_a_second_race_waits_its_turn(host: Host) -> None:
    """Readers' orders prove nothing: the first may still be reading its last events when the
    second's race begins. So the first race is one that goes on.
    """
    second = list[Event]()
    first = streamed(host, ENDLESS)
    next(first)
    other = threading.Thread(target=lambda: second.extend(streamed(host, SHORT)))
    other.start()
    for _ in range(100):
        next(first)
        assert not second
    first.close()
    other.join(PATIENCE)
    assert sorted(ends(second)) == list(range(len(COLUMNS)))


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGSEGV])
def test_a_worker_that_dies_fails_the_running_columns_with_the_cause(
    worker: ProcessHost, death: signal.Signals
) -> None:
    short = parse_column("grammar:grammar=date")
    seen: list[Event] = []
    for event in streamed(worker, replace(ENDLESS, columns=(short, *COLUMNS[1:4]))):
        seen.append(event)
        if isinstance(event, Finished):  # the others have thousands of tokens to go
            os.kill(worker.pid, death)
    last = ends(seen)
    assert last.pop(0) == Finished(0, "end of text", [])
    assert sorted(last) == [1, 2, 3]
    for event in last.values():
        assert isinstance(event, Failed)
        assert death.name in event.message
        assert ("memory" in event.message) == (death == signal.SIGKILL)
    assert_works(worker)


def test_a_worker_that_hangs_is_replaced_after_its_race_was_stopped(
    worker: ProcessHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A halted process stands for one that is stuck in native code."""
    monkeypatch.setattr(hosts, "PASS_GRACE", 0.05)
    before, seen = worker.pid, list[Event]()
    stream = streamed(worker, ENDLESS, lambda: bool(seen))
    seen.append(next(stream))
    os.kill(before, signal.SIGSTOP)
    assert ends([*seen, *stream]) == stopped_ends(ENDLESS)
    assert worker.pid != before
    assert_works(worker)


def test_a_stop_waits_for_a_long_pass(worker: ProcessHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large model a pass takes longer than a second: its worker was ended, and all models."""
    monkeypatch.setattr(hosts, "LOAD_GRACE", 0.0)
    assert ends(streamed(worker, FakeRace())) == DONE
    before = worker.pid
    assert ends(streamed(worker, Wait(looks=9), lambda: True)).keys() == {0}
    assert ends(streamed(worker, FakeRace())) == DONE
    assert worker.pid == before


def test_a_stop_does_not_wait_for_what_loads_a_model(worker: ProcessHost) -> None:
    """Native code that loads or converts a model knows nothing of Stop: the worker is replaced."""
    first, begun = worker.pid, threading.Event()
    events = streamed(worker, HoldInterpreter(), begun.is_set)
    assert next(events) == Preparing("begun")
    begun.set()
    assert list(events) == [Finished(0, "stopped", [])]
    assert ends(streamed(worker, FakeRace())) == DONE
    assert worker.pid != first


def test_a_race_that_comes_early_hears_what_is_being_prepared_and_can_be_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The page opens before the model is converted: it said "Getting ready..." meanwhile."""
    monkeypatch.setattr(hosts, "work", preparing)
    early, preparation = ProcessHost(), threading.Event()
    first = early.pid
    with closing(early):
        for event in streamed(early, FakeRace(), preparation.is_set):
            if event == Preparing("Converting the model..."):
                preparation.set()
        assert preparation.is_set()
        assert alive(first), "nobody's models have to be loaded anew for a stop"
        assert early.pid == first
    assert not alive(first)


def test_a_ctrl_c_does_not_reach_a_worker_that_starts() -> None:
    """A terminal sends it to every process; a worker ignored it only once it had imported all."""
    with closing(ProcessHost()) as host:
        first, done = host.pid, threading.Event()

        def interrupt() -> None:
            while not done.wait(0.005):
                os.kill(first, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        assert ends(streamed(host, FakeRace())) == DONE
        done.set()
        thread.join()
        assert host.pid == first


def test_a_worker_that_cannot_start_is_started_again_by_a_race_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that aborted at birth was started 377 times in ten seconds."""
    monkeypatch.setattr(hosts, "work", aborting)
    with closing(ProcessHost()) as host:
        for _ in range(2):
            last = ends(streamed(host, FakeRace()))
            assert "fails to start (SIGABRT)" in getattr(last[0], "message", "")
            pid = host.pid
            until(lambda pid=pid: not alive(pid))
            threading.Event().wait(0.2)
            assert host.pid == pid
        monkeypatch.undo()
        list(streamed(host, FakeRace()))
        assert ends(streamed(host, FakeRace())) == DONE, "whatever it was has passed"


def test_races_stops_and_deaths_leave_no_thread_no_file_and_no_process(worker: ProcessHost) -> None:
    """Nor does a worker that was started by a race's thread end with that: the kernel does so."""

    def resources() -> tuple[int, int, int]:
        process = psutil.Process()
        return threading.active_count(), process.num_fds(), len(process.children(recursive=True))

    chance = random.Random(3)
    assert ends(streamed(worker, FakeRace())) == DONE
    before = resources()
    for _ in range(20):
        looks = iter(range(chance.randrange(6)))
        (last,) = ends(
            streamed(worker, Wait(looks=9), lambda looks=looks: next(looks, None) is None)
        ).values()
        assert isinstance(last, Finished)
    os.kill(worker.pid, signal.SIGSEGV)
    until(lambda: not worker._process.is_alive())
    for _ in range(2):
        assert ends(streamed(worker, FakeRace())) == DONE
    until(lambda: all(now <= then for now, then in zip(resources(), before, strict=True)))


def test_a_closed_host_leaves_no_process_behind_even_under_a_race() -> None:
    host = ProcessHost()
    stream = streamed(host, ENDLESS)
    next(stream)
    pid = host.pid
    host.close()
    assert sorted(ends(stream)) == [0, 1, 2, 3]
    assert host.pid == pid
    assert not alive(pid)
