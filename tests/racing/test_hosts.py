"""Hosts: the same race wherever it runs, and a worker that may stop, hang or die at any moment."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import psutil
import pytest
from hosting import PATIENCE, ends, never, no_hanging, streamed, until

from backend.events import Event, Failed, Finished, Prefilled, Started, Step
from backend.grammar.sources import GrammarSource
from backend.racing import hosts as workers
from backend.racing.hosts import Host, InlineHost, ProcessHost
from backend.racing.race import Race
from backend.strategies.column import default_column, parse_column
from backend.strategies.registry import DEFAULT_COLUMNS
from backend.types import ModelSpec, Request

COLUMNS = tuple(map(parse_column, DEFAULT_COLUMNS))
SHORT = Race(Request("Who is it?", max_new_tokens=25), COLUMNS, ModelSpec("fake", "fake"))
# Twenty milliseconds a step and thousands of tokens, of which none ends the text.
ENDLESS = Race(Request("Who?", max_new_tokens=4000), COLUMNS[:4], ModelSpec("fake-endless", "fake"))
LONG_PROMPT = replace(ENDLESS, request=Request("who " * 950, max_new_tokens=100))
SOON = 300  # events that may still be on their way when a race is stopped


def assert_works(host: Host) -> None:
    found = ends(list(streamed(host, SHORT, never)))
    assert sorted(found) == list(range(len(COLUMNS)))
    assert all(isinstance(event, Finished) for event in found.values())


@pytest.fixture(autouse=True)
def no_test_hangs() -> Iterator[None]:
    with no_hanging():
        yield


@pytest.fixture(scope="module")
def worker() -> Iterator[ProcessHost]:
    host = ProcessHost()
    yield host
    host.close()


@pytest.fixture(params=["inline", "process"])
def host(request: pytest.FixtureRequest) -> Host:
    if request.param == "inline":
        return InlineHost()
    shared: ProcessHost = request.getfixturevalue("worker")
    return shared


def texts(host: Host, race: Race) -> dict[int, list[int]]:
    written: dict[int, list[int]] = {i: [] for i in range(len(race.columns))}
    for event in streamed(host, race, never):
        if isinstance(event, Step):
            written[event.column] += event.tokens
    return written


def test_both_hosts_write_the_same(worker: ProcessHost) -> None:
    race = replace(SHORT, columns=(*COLUMNS[1:], parse_column("speculative:draft=fake-draft,k=2")))
    assert texts(InlineHost(), race) == texts(worker, race)


def stopped_after(host: Host, race: Race, kind: type[Event]) -> list[Event]:
    """Stop a race at its first event of that kind. Raises AssertionError if it goes on."""
    seen: list[Event] = []
    late = 0
    for event in streamed(host, race, lambda: any(isinstance(e, kind) for e in seen)):
        late += any(isinstance(e, kind) for e in seen)
        assert late < SOON, "the stop did not reach the race"
        seen.append(event)
    return seen


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine, a worker that answers at all is not replaced."""
    monkeypatch.setattr(workers, "STOP_GRACE", PATIENCE)


@pytest.mark.parametrize("kind", [Step, Prefilled, Started])
def test_a_stop_ends_every_column_as_stopped(host: Host, kind: type[Event], patient: None) -> None:
    """It is noticed by the worker itself, which does not have to be replaced."""
    before = host.pid if isinstance(host, ProcessHost) else 0
    race = LONG_PROMPT if kind is Prefilled else ENDLESS
    seen = stopped_after(host, race, kind)
    if kind is Prefilled:
        assert not any(isinstance(event, Step) for event in seen)
    assert ends(seen) == {i: Finished(i, "stopped", []) for i in range(len(race.columns))}
    assert_works(host)
    assert before == (host.pid if isinstance(host, ProcessHost) else 0)


def test_a_stop_is_noticed_while_an_untrusted_grammar_is_checked(patient: None) -> None:
    """The worker waited for the check and for nothing else, up to five seconds of processor time,
    and so was replaced: every loaded model was lost by one Stop.
    """
    hostile = GrammarSource("lark", "start: /a+/ /a+/", "hostile")
    columns = (default_column("grammar").with_settings({"grammar": hostile}), *COLUMNS[:1])
    host = ProcessHost()
    pid, worker = host.pid, psutil.Process(host.pid)
    with closing(host):
        stream = streamed(host, replace(SHORT, columns=columns), lambda: bool(worker.children()))
        assert ends(list(stream))[0] == Finished(0, "stopped", [])
        assert not worker.children(), "the check goes on"
        assert_works(host)
        assert host.pid == pid, "it did not have to be replaced"


def test_an_abandoned_stream_leaves_the_host_usable(host: Host, patient: None) -> None:
    pid = host.pid if isinstance(host, ProcessHost) else 0
    for taken in (0, 1, 7):
        stream = streamed(host, ENDLESS, never)
        for _ in range(taken):
            next(stream)
        stream.close()
        assert_works(host)
    if isinstance(host, ProcessHost):
        assert host.pid == pid


def test_a_second_race_waits_its_turn(host: Host) -> None:
    """What two readers make of their events proves nothing: the first may still be reading its last
    ones when the second's race begins. So the first race is one that goes on.
    """
    heard: list[Event] = []
    first = streamed(host, ENDLESS, never)
    next(first)

    def second() -> None:
        heard.extend(streamed(host, SHORT, never))

    other = threading.Thread(target=second)
    other.start()
    for _ in range(100):
        next(first)
        assert not heard
    first.close()
    other.join(PATIENCE)
    assert sorted(ends(heard)) == list(range(len(COLUMNS)))


def test_a_race_that_waits_can_be_stopped(host: Host) -> None:
    """The one in front was waited for however long it took."""
    first = streamed(host, ENDLESS, never)
    next(first)
    asked = 0

    def stopped() -> bool:
        nonlocal asked
        asked += 1
        return asked > 2

    events = list(streamed(host, SHORT, stopped))
    assert events == [Finished(i, "stopped", []) for i in range(len(COLUMNS))]
    next(first)
    first.close()
    assert_works(host)


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGSEGV])
def test_a_worker_that_dies_fails_the_running_columns_with_the_cause(
    worker: ProcessHost, death: signal.Signals
) -> None:
    short = parse_column("grammar:grammar=date")
    seen: list[Event] = []
    for event in streamed(worker, replace(ENDLESS, columns=(short, *COLUMNS[1:4])), never):
        seen.append(event)
        if isinstance(event, Finished):  # the others have thousands of tokens to go
            os.kill(worker.pid, death)
    found = ends(seen)
    assert found.pop(0) == Finished(0, "end of text", [])
    assert sorted(found) == [1, 2, 3]
    for event in found.values():
        assert isinstance(event, Failed)
        assert death.name in event.message
        assert event.cause == "worker"
        assert ("memory" in event.message) == (death == signal.SIGKILL)
    assert_works(worker)


@pytest.mark.parametrize("abandoned", [False, True])
def test_a_worker_that_hangs_is_replaced_after_its_race_was_stopped_or_left(
    worker: ProcessHost, monkeypatch: pytest.MonkeyPatch, abandoned: bool
) -> None:
    """A halted process stands for one that is stuck in native code."""
    before = worker.pid
    seen: list[Event] = []
    with monkeypatch.context() as patch:
        patch.setattr(workers, "STOP_GRACE", 0.05)
        stream = streamed(worker, ENDLESS, lambda: bool(seen))
        seen.append(next(stream))
        os.kill(before, signal.SIGSTOP)
        if abandoned:
            stream.close()
        else:
            stopped = {i: Finished(i, "stopped", []) for i in range(len(ENDLESS.columns))}
            assert ends([*seen, *stream]) == stopped
        until(lambda: worker.pid != before)
    assert_works(worker)


def test_a_closed_host_leaves_no_process_behind_even_under_a_race() -> None:
    host = ProcessHost()
    stream = streamed(host, ENDLESS, never)
    next(stream)
    worker, started = host._process, host.pid
    host.close()
    assert sorted(ends(list(stream))) == [0, 1, 2, 3]
    assert host.pid == started
    assert not worker.is_alive()
