"""A worker process at its worst: slow to start, deaf, halted, hung, killed at any moment."""

import gc
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from deeds import (
    Compute,
    Deed,
    Die,
    HoldAll,
    HoldInterpreter,
    Prepare,
    TakeMemory,
    Wait,
    WaitForOthers,
    aborting,
    aborting_when_ready,
    deaf,
    never_ready,
    preparing,
)
from hosting import PATIENCE, alive, ends, never, no_hanging, until

from backend.events import Event, Failed, Finished, Preparing
from backend.racing.hosts import process, worker
from backend.racing.hosts.host import Host, HostFacts
from backend.racing.hosts.inline import InlineHost
from backend.racing.hosts.process import LONGEST_PAUSE, ProcessHost, pause
from backend.racing.hosts.worker import (
    HALTED,
    HALTED_LOOKS,
    HUNG,
    LOOK,
    STILL_LOOKS,
    WORK,
    Watch,
)

DONE = {0: Finished(0, "end of text", [])}
STOPPED = {0: Finished(0, "stopped", [])}
MEGABYTE = "x" * 2**20
CYCLES = int(os.environ.get("CYCLES", "20"))


@pytest.fixture(autouse=True)
def no_test_hangs() -> Iterator[None]:
    with no_hanging(20 * PATIENCE):  # for twenty workers
        yield


@pytest.fixture
def host() -> Iterator[ProcessHost]:
    made = ProcessHost()
    yield made
    made.close()


def run(host: ProcessHost, deed: Deed, stopped: Callable[[], bool] = never) -> dict[int, Event]:
    return ends(list(host.stream(deed, stopped)))


def sentence(ended: dict[int, Event]) -> str:
    """That of the one column, which failed."""
    assert list(ended) == [0]
    assert isinstance(ended[0], Failed)
    return ended[0].message


def after(looks: int) -> Callable[[], bool]:
    """A stop that comes at the look after so many."""
    left = iter(range(looks))
    return lambda: next(left, None) is None


@pytest.mark.parametrize("life", [never_ready, deaf])
def test_a_stop_ends_a_race_that_the_worker_has_not_read(
    monkeypatch: pytest.MonkeyPatch, life: Callable[..., None]
) -> None:
    """A request of more than 200 KB filled the pipe of a worker that was still starting, and the
    thread that drives the race waited in `send`: Stop was ignored for 12 to 22 s, and for ever if
    the worker hung.
    """
    with monkeypatch.context() as patch:
        patch.setattr(worker, "work", life)
        host = ProcessHost()
    try:
        if life is deaf:
            until(host._worker.ready.is_set)
        with no_hanging(PATIENCE):
            assert run(host, Deed(MEGABYTE), after(3)) == STOPPED
            first = host._worker
        if life is deaf:  # whatever it reads next, it is not idle
            assert first.lost.is_set()
            assert run(host, Deed()) == DONE
            assert host.facts().restarts == {"stop": 1}
        else:  # nobody's models have to be loaded anew for a stop
            assert not first.lost.is_set()
    finally:
        host.close()
    assert not alive(first.pid)


def test_a_race_that_comes_early_hears_what_is_being_prepared(
    monkeypatch: pytest.MonkeyPatch, host: ProcessHost
) -> None:
    """The page opens before the model is converted: it said "Getting ready..." meanwhile."""
    with monkeypatch.context() as patch:
        patch.setattr(worker, "work", preparing)
        early = ProcessHost()
    heard = threading.Event()
    try:
        for event in early.stream(Deed(), heard.is_set):
            if event == Preparing("Converting the model..."):
                heard.set()
        assert early.facts().preparing == "Converting the model..."
    finally:
        early.close()
    until(lambda: not host.facts().preparing)
    assert host._worker.ready.is_set()


def looks(
    watch: Watch,
    times: int,
    *,
    halted: bool = False,
    idle: bool = False,
    signs: int = 0,
    used: float | None = 0.0,
) -> list[object]:
    return [
        watch.look(halted=halted, idle=idle, signs=signs, used=lambda: used) for _ in range(times)
    ]


def test_a_halted_process_is_found_within_ten_seconds_but_not_at_once() -> None:
    """After Ctrl-Z and `fg` the app may go on before its worker does."""
    watch = Watch()
    almost = HALTED_LOOKS - 1
    assert looks(watch, almost, idle=True, halted=True) == [None] * almost
    assert looks(watch, 1) == [None]
    assert looks(watch, HALTED_LOOKS, idle=True, halted=True)[-1] == HALTED
    assert (HALTED_LOOKS + 1) * LOOK < 10


def test_a_process_is_lost_only_after_a_time_without_word_or_work() -> None:
    watch = Watch()
    patience = [None] * STILL_LOOKS
    assert looks(watch, 2 * STILL_LOOKS, idle=True) == 2 * patience
    assert looks(watch, STILL_LOOKS - 1) == patience[1:]
    assert looks(watch, STILL_LOOKS, signs=1) == patience
    assert looks(watch, STILL_LOOKS, signs=1, used=WORK) == patience
    assert looks(watch, 1, signs=1, used=1.5 * WORK) == [HUNG]
    assert looks(watch, 1, signs=1, used=None) == [None], "it may not be looked at"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks follow one another faster."""
    monkeypatch.setattr(worker, "LOOK", 0.1)
    monkeypatch.setattr(worker, "STILL_LOOKS", 25)


def test_a_worker_that_is_halted_during_a_race_is_replaced(host: ProcessHost, hasty: None) -> None:
    """Its visitor saw "Racing." for ever, and all the others waited in line behind it."""
    seen = []
    for event in host.stream(Wait(), never):
        if not seen:
            os.kill(host.pid, signal.SIGSTOP)
        seen.append(event)
    assert "halted" in sentence(ends(seen))
    assert run(host, Deed()) == DONE
    assert host.facts().restarts == {"halted": 1}


def test_a_worker_that_is_halted_while_idle_is_replaced(host: ProcessHost, hasty: None) -> None:
    assert run(host, Deed()) == DONE
    halted = host.pid
    os.kill(halted, signal.SIGSTOP)
    until(lambda: host.pid != halted)
    assert run(host, Deed(MEGABYTE)) == DONE
    assert not alive(halted)


@pytest.mark.parametrize("deed", [Wait(), HoldInterpreter()])
def test_a_worker_that_hangs_is_replaced(host: ProcessHost, hasty: None, deed: Deed) -> None:
    assert "did nothing for" in sentence(run(host, deed))
    assert run(host, Deed()) == DONE
    assert host.facts().restarts == {"hung": 1}


@pytest.mark.thorough
@pytest.mark.parametrize("deed", [Compute(seconds=4), WaitForOthers(looks=70)])
def test_a_worker_that_works_without_a_word_is_left_alone(
    host: ProcessHost, hasty: None, deed: Deed
) -> None:
    """Models are converted for minutes in native code, and a remote server may take its time."""
    before = host.pid
    assert run(host, deed) == DONE
    assert host.pid == before


def test_a_ctrl_c_does_not_reach_a_worker_that_starts(host: ProcessHost) -> None:
    """A terminal sends it to every process; a worker ignored it only once it had imported all."""
    while not host._worker.ready.is_set():
        os.kill(host.pid, signal.SIGINT)
    os.kill(host.pid, signal.SIGINT)
    assert run(host, Deed()) == DONE
    assert host.facts().restarts == {}


def test_a_closed_host_says_that_it_is(host: ProcessHost) -> None:
    stream = host.stream(Wait(), never)
    next(stream)
    host.close()
    assert "The app is ending" in sentence(ends(list(stream)))
    assert "The app is ending" in sentence(run(host, Deed()))


def test_a_worker_that_dies_takes_its_sandbox_along(host: ProcessHost, tmp_path: Path) -> None:
    note = tmp_path / "sandbox"
    ended = run(host, HoldAll(str(note)), lambda: note.exists() and bool(note.read_text()))
    assert ended == STOPPED
    until(lambda: not alive(int(note.read_text())))


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
    assert host.facts().restarts == {"killed": 1}


def test_a_race_that_a_dead_worker_never_read_is_given_to_the_next(host: ProcessHost) -> None:
    """A race begun in the same millisecond as an idle kill failed instead of waiting."""
    for _ in range(3):
        assert run(host, Deed()) == DONE
        idle = host.pid
        os.kill(idle, signal.SIGSTOP)  # so that it reads nothing more

        def kill(idle: int = idle) -> bool:
            with suppress(ProcessLookupError):
                os.kill(idle, signal.SIGKILL)
            return False

        assert run(host, Deed(), kill) == DONE


def test_a_race_that_kills_its_worker_is_not_tried_again(host: ProcessHost, tmp_path: Path) -> None:
    notes = tmp_path / "pids"
    assert "SIGKILL" in sentence(run(host, Die(path=str(notes))))
    assert run(host, Deed()) == DONE
    assert len(notes.read_text().split()) == 1


@pytest.mark.parametrize("life", [aborting, aborting_when_ready])
def test_a_worker_that_cannot_live_is_not_started_again_and_again(
    monkeypatch: pytest.MonkeyPatch, life: Callable[..., None]
) -> None:
    """One that aborted at birth was started 377 times in ten seconds, and races waited for it."""
    with monkeypatch.context() as patch:
        patch.setattr(worker, "work", life)
        pauses: list[int] = []
        patch.setattr(process, "pause", lambda vain: pauses.append(vain) or PATIENCE)
        host = ProcessHost()
        try:
            until(lambda: host.facts().restarts)
            for races in (1, 2):  # each has its own tries, and the pauses are not for it
                said = sentence(run(host, Deed()))
                assert "SIGABRT" in said
                if life is aborting:
                    assert "fails to start" in said
                until(lambda races=races: host.facts().restarts["crashed"] > 2 * races)
            assert host.facts().restarts["crashed"] <= 2 * 2 + 1
            assert pauses == list(range(1, len(pauses) + 1)), "each longer than the one before"
            assert pauses
            patch.undo()
            assert run(host, Deed()) == DONE, "whatever it was has passed"
        finally:
            host.close()


def test_starts_in_vain_become_rare_and_others_do_not_wait() -> None:
    assert pause(0) == 0
    assert sum(pause(vain) for vain in range(1, 6)) > 10, "seconds, after five starts"
    assert pause(10_000) == pause(100) == LONGEST_PAUSE


def test_a_column_that_lacks_memory_fails_alone_with_a_sentence(host: ProcessHost) -> None:
    before = host.pid
    ended = run(host, TakeMemory())
    assert ended.pop(0) == Finished(0, "column limit", [])
    assert isinstance(ended[1], Failed)
    assert "memory ran out" in ended[1].message
    assert run(host, Deed()) == DONE
    assert host.pid == before


def test_a_stop_while_a_folder_is_prepared_leaves_nothing_half_made(
    host: ProcessHost, tmp_path: Path
) -> None:
    """Native code that loads or converts a model knows nothing of Stop: the worker is replaced."""
    half = tmp_path / "folder.partial" / "half"
    assert run(host, Prepare(str(tmp_path), stuck=True), half.exists) == STOPPED
    assert run(host, Prepare(str(tmp_path))) == DONE
    assert host.facts().restarts == {"stop": 1}
    assert (tmp_path / "folder" / "other half").read_text() == "two"
    assert not half.exists()


def test_an_app_that_ends_while_a_folder_is_prepared_leaves_nothing_half_made(
    host: ProcessHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in a conversion left gigabytes of a partial folder until the next start."""
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path))
    half = tmp_path / "folder.partial" / "half"
    raced = threading.Thread(target=run, args=(host, Prepare(str(tmp_path), stuck=True)))
    raced.start()
    until(half.exists)
    host.close()
    raced.join()
    assert not half.parent.exists()


def test_an_operator_can_read_what_became_of_the_worker(host: ProcessHost) -> None:
    until(lambda: host.facts().worker_memory > 10**7)
    assert host.facts().restarts == {}
    host.close()
    assert host.facts() == HostFacts()
    assert InlineHost().facts() == HostFacts()


def things() -> tuple[int, int, int]:
    """How many threads, open files and child processes this process has."""
    myself = psutil.Process()
    return threading.active_count(), myself.num_fds(), len(myself.children(recursive=True))


def none_more_than(before: tuple[int, int, int]) -> bool:
    """Whether nothing is left; what an earlier test had left may have gone meanwhile."""
    return all(now <= then for now, then in zip(things(), before, strict=True))


@pytest.mark.parametrize("make", [InlineHost, ProcessHost])
def test_races_and_stops_leave_no_thread_no_file_and_no_process(make: Callable[[], Host]) -> None:
    chance = random.Random(3)
    host = make()
    try:
        assert run(host, WaitForOthers(looks=1)) == DONE
        before = things()
        for _ in range(CYCLES):
            assert run(host, WaitForOthers(looks=9), after(chance.randrange(6))) in (DONE, STOPPED)
        until(lambda: none_more_than(before))
    finally:
        host.close()


def test_workers_that_die_leave_no_thread_no_file_and_no_process() -> None:
    def lives() -> None:
        host = ProcessHost()
        assert run(host, Deed()) == DONE
        os.kill(host.pid, signal.SIGKILL)
        assert run(host, Deed()) == DONE
        host.close()

    lives()
    before = things()
    for _ in range(2):
        lives()
    gc.collect()
    until(lambda: none_more_than(before))
