"""A worker process at its worst: slow to start, hung, killed at any moment."""

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from deeds import Deed, Die, Prepare, TakeMemory, WaitForOthers, aborting, preparing
from hosting import PATIENCE, alive, ends, never, no_hanging, streamed, until

from backend.events import Event, Failed, Finished, Preparing
from backend.racing import hosts
from backend.racing.hosts import Host, ProcessHost

DONE = {0: Finished(0, "end of text", [])}
STOPPED = {0: Finished(0, "stopped", [])}
CYCLES = int(os.environ.get("CYCLES", "20"))


@pytest.fixture(autouse=True)
def no_test_hangs() -> Iterator[None]:
    with no_hanging(10 * PATIENCE):
        yield


@pytest.fixture
def host() -> Iterator[ProcessHost]:
    made = ProcessHost()
    yield made
    made.close()


def run(host: Host, deed: Deed, stopped: Callable[[], bool] = never) -> dict[int, Event]:
    return ends(list(streamed(host, deed, stopped)))


def sentence(ended: dict[int, Event]) -> str:
    """That of the one column, which failed."""
    assert list(ended) == [0]
    assert isinstance(ended[0], Failed)
    return ended[0].message


def after(looks: int) -> Callable[[], bool]:
    """A stop that comes at the look after so many."""
    left = iter(range(looks))
    return lambda: next(left, None) is None


def test_a_race_that_comes_early_hears_what_is_being_prepared_and_can_be_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The page opens before the model is converted: it said "Getting ready..." meanwhile."""
    with monkeypatch.context() as patch:
        patch.setattr(hosts, "work", preparing)
        early = ProcessHost()
    heard, first = threading.Event(), early.pid
    try:
        for event in streamed(early, Deed(), heard.is_set):
            if event == Preparing("Converting the model..."):
                heard.set()
        assert heard.is_set()
        assert alive(first), "nobody's models have to be loaded anew for a stop"
        assert early.pid == first
    finally:
        early.close()
    assert not alive(first)


def test_a_ctrl_c_does_not_reach_a_worker_that_starts(host: ProcessHost) -> None:
    """A terminal sends it to every process; a worker ignored it only once it had imported all."""
    first, done = host.pid, threading.Event()

    def interrupt() -> None:
        while not done.wait(0.005):
            os.kill(first, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert run(host, Deed()) == DONE
    done.set()
    thread.join()
    assert host.pid == first


def test_threads_may_begin_races_and_end(host: ProcessHost) -> None:
    """The kernel ends a worker with the thread that started it, which must not be a race's."""
    os.kill(host.pid, signal.SIGKILL)
    for _ in range(3):
        thread = threading.Thread(target=run, args=(host, Deed()))
        thread.start()
        thread.join()
    before = host.pid
    assert run(host, Deed()) == DONE
    assert host.pid == before


def test_a_worker_that_cannot_start_is_started_again_by_a_race_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that aborted at birth was started 377 times in ten seconds."""
    with monkeypatch.context() as patch:
        patch.setattr(hosts, "work", aborting)
        host = ProcessHost()
        try:
            for _ in range(2):
                assert "fails to start (SIGABRT)" in sentence(run(host, Deed()))
                last = host.pid
                until(lambda pid=last: not alive(pid))
                threading.Event().wait(0.2)
                assert host.pid == last
            patch.undo()
            run(host, Deed())
            assert run(host, Deed()) == DONE, "whatever it was has passed"
        finally:
            host.close()


def test_a_column_that_lacks_memory_fails_alone_with_a_sentence(host: ProcessHost) -> None:
    ended = run(host, TakeMemory())
    before = host.pid
    assert ended.pop(0) == Finished(0, "token limit", [])
    assert isinstance(ended[1], Failed)
    assert "memory ran out" in ended[1].message
    assert run(host, Deed()) == DONE
    assert host.pid == before


def test_a_stop_while_a_folder_is_prepared_leaves_nothing_half_made(
    host: ProcessHost, tmp_path: Path
) -> None:
    """Native code that loads or converts a model knows nothing of Stop: the worker is replaced."""
    half = tmp_path / "folder.partial" / "half"
    first = host.pid
    assert run(host, Prepare(str(tmp_path), stuck=True), half.exists) == STOPPED
    assert run(host, Prepare(str(tmp_path))) == DONE
    assert host.pid != first
    assert (tmp_path / "folder" / "other half").read_text() == "two"
    assert not half.exists()


def things() -> tuple[int, int, int]:
    """How many threads, open files and child processes this process has."""
    myself = psutil.Process()
    return threading.active_count(), myself.num_fds(), len(myself.children(recursive=True))


def none_more_than(before: tuple[int, int, int]) -> bool:
    """Whether nothing is left; what an earlier test had left may have gone meanwhile."""
    return all(now <= then for now, then in zip(things(), before, strict=True))


def test_races_stops_and_deaths_leave_no_thread_no_file_and_no_process(host: ProcessHost) -> None:
    chance = random.Random(3)
    assert run(host, WaitForOthers(looks=1)) == DONE
    before = things()
    for _ in range(CYCLES):
        assert run(host, WaitForOthers(looks=9), after(chance.randrange(6))) in (DONE, STOPPED)
    assert "SIGSEGV" in sentence(run(host, Die(number=signal.SIGSEGV)))
    assert run(host, Deed()) == DONE
    until(lambda: none_more_than(before))
