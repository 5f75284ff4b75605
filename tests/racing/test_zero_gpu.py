"""A GPU that is lent for a call: the forked process, who asked, and the columns beside it."""

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import families
import pytest
from hosting import ends, never, no_hanging
from lent_gpu import Lending, Refusal

from backend.engines.torch.engine import place
from backend.events import Conditions, Event, Failed, Finished, Started, Step
from backend.grammar.sources import GrammarSource
from backend.kvcache.sources import Visitor
from backend.processes import from_lasting_thread
from backend.racing.commands import ForgetVisitor, Measure, SaveColumn
from backend.racing.hosts import zero_gpu
from backend.racing.hosts.inline import InlineHost
from backend.racing.hosts.process import ProcessHost
from backend.racing.hosts.zero_gpu import LONGEST, SHORTEST, ZeroGpuHost, on_cuda, shares_of
from backend.racing.race import Race
from backend.strategies.column import parse_column
from backend.types import AnswerSoFar, ModelSpec, Request

# A fork of a process with threads: what Spaces do, and Python 3.12 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")

FAKE = ModelSpec("fake", "fake")
MIXED = Race(
    Request("Who is it?", max_new_tokens=25),
    tuple(map(parse_column, ("kv@fake/fp32/lent", "lookup", "lookahead@fake/fp32/lent", "kv"))),
    FAKE,
)
ENDLESS = Race(
    Request("Who?", max_new_tokens=4000),
    MIXED.columns,
    ModelSpec("fake-endless", "fake"),
)


def lent(spec: ModelSpec) -> bool:
    return spec.device == "lent"


@pytest.fixture(autouse=True)
def no_test_hangs() -> Iterator[None]:
    with no_hanging():
        yield


@pytest.fixture(scope="module")
def worker() -> Iterator[ProcessHost]:
    with closing(ProcessHost()) as host:
        yield host


@pytest.fixture
def lending() -> Iterator[Lending]:
    made = Lending()
    yield made
    for pid in made.forks:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def host(worker: ProcessHost, lending: Lending) -> ZeroGpuHost:
    return ZeroGpuHost(worker, lending, lent)


def texts(events: Sequence[Event]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for event in events:
        if isinstance(event, Step):
            found.setdefault(event.column, []).extend(event.tokens)
    return found


def test_columns_of_gpu_and_cpu_race_at_once_as_they_do_anywhere(
    host: ZeroGpuHost, lending: Lending
) -> None:
    events = list(host.stream(MIXED, never))
    assert sorted(ends(events)) == [0, 1, 2, 3]
    assert texts(events) == texts(list(InlineHost().stream(MIXED, never)))
    places = {event.column: event.spec["device"] for event in events if isinstance(event, Started)}
    assert places == {0: "lent", 1: "CPU", 2: "lent", 3: "CPU"}
    assert any(isinstance(event, Conditions) for event in events)
    # The next one finds the fork again, and its models.
    loaded = [
        event.loaded
        for event in host.stream(replace(MIXED, columns=MIXED.columns[:1]), never)
        if isinstance(event, Conditions)
    ]
    assert (loaded, len(lending.forks), len(lending.calls)) == ([0], 1, 2)


def test_both_sides_run_at_the_same_time(host: ZeroGpuHost) -> None:
    """The GPU's columns do not wait for the CPU's, nor the other way round: steps of both come
    before either side has ended.
    """
    seen: set[int] = set()
    stopped = threading.Event()
    for event in host.stream(ENDLESS, stopped.is_set):
        assert not isinstance(event, Failed)
        if isinstance(event, Step):
            seen.add(event.column)
        if seen == {0, 1, 2, 3}:
            stopped.set()
    assert seen == {0, 1, 2, 3}


def test_a_stop_reaches_the_fork_and_leaves_it_idle(host: ZeroGpuHost, lending: Lending) -> None:
    race = replace(ENDLESS, columns=ENDLESS.columns[:1])
    stopped = threading.Event()
    events = []
    for event in host.stream(race, stopped.is_set):
        events.append(event)
        if isinstance(event, Step):
            stopped.set()
    assert isinstance(ends(events)[0], Finished)
    assert sum(isinstance(event, Step) for event in events) < 1000
    assert sorted(ends(list(host.stream(MIXED, never)))) == [0, 1, 2, 3]
    assert len(lending.forks) == 1  # it had ended, and was not given up


def test_who_waits_for_a_gpu_can_stop(worker: ProcessHost) -> None:
    """Spaces keep a call waiting for a minute and more; a stop does not wait for that."""
    free = threading.Event()

    def lend(*, duration: Any) -> Any:
        def busy(task: Any) -> Any:
            def call(*arguments: Any) -> Iterator[Any]:
                free.wait()
                yield from ()

            return call

        return busy

    waiting = ZeroGpuHost(worker, lend, lent)
    events = list(waiting.stream(replace(MIXED, columns=MIXED.columns[:1]), lambda: True))
    assert ends(events) == {0: Finished(0, "stopped", [])}
    free.set()


def test_a_measurement_ends_no_column(host: ZeroGpuHost) -> None:
    """Its columns were told to have stopped, though it has none that end."""
    assert ends(list(host.stream(Measure(MIXED.columns, FAKE), never))) == {}


def test_a_refusal_fails_the_gpus_columns_alone(host: ZeroGpuHost, lending: Lending) -> None:
    lending.refusal = Refusal("ZeroGPU quota exceeded", "You have exceeded your quota (30s left).")
    found = ends(list(host.stream(MIXED, never)))
    for column in (0, 2):
        event = found[column]
        assert isinstance(event, Failed)
        assert event.message.startswith("ZeroGPU quota exceeded: You have exceeded your quota")
        assert "device CPU" in event.message
    assert isinstance(found[1], Finished)
    assert isinstance(found[3], Finished)


def test_a_fork_that_dies_fails_its_columns_and_the_next_race_has_another(
    host: ZeroGpuHost, lending: Lending
) -> None:
    events = []
    for event in host.stream(replace(ENDLESS, columns=ENDLESS.columns[:1]), never):
        events.append(event)
        if isinstance(event, Step) and len(events) < 10:
            os.kill(lending.forks[-1], signal.SIGKILL)
    failed = ends(events)[0]
    assert isinstance(failed, Failed)
    assert "GPU task aborted" in failed.message
    assert isinstance(ends(list(host.stream(MIXED, never)))[0], Finished)
    assert len(lending.forks) == 2


def test_a_call_ends_before_its_seconds_are_over(
    host: ZeroGpuHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zero_gpu, "MARGIN", float(LONGEST))
    race = replace(ENDLESS, columns=ENDLESS.columns[:1])
    assert ends(list(host.stream(race, never))) == {0: Finished(0, "end of GPU time", [])}


def test_the_seconds_follow_from_the_line_up_and_from_what_passes_took(
    host: ZeroGpuHost, lending: Lending
) -> None:
    def declared(race: Race) -> int:
        list(host.stream(race, never))
        return lending.calls[-1]

    short = replace(MIXED, request=replace(MIXED.request, max_new_tokens=1))
    long = replace(ENDLESS, columns=MIXED.columns[:1])
    assert declared(short) == SHORTEST
    stopped = iter([False] * 3)
    list(host.stream(long, lambda: next(stopped, True)))
    assert lending.calls[-1] == LONGEST
    host._one_row[MIXED.columns[0].target(MIXED.target)] = 0.2
    request = replace(MIXED.request, max_new_tokens=100)
    slow = replace(MIXED, columns=MIXED.columns[:1], request=request)
    assert SHORTEST < declared(slow) < LONGEST


def test_a_grammar_is_examined_in_a_child_of_the_fork(host: ZeroGpuHost) -> None:
    """The process that forks may have started children already, from a thread no fork has."""
    from_lasting_thread(int)
    grammar = GrammarSource("regex", "[a-z]+", "letters")
    race = replace(MIXED, columns=(parse_column("grammar@fake/fp32/lent:grammar=own", grammar),))
    assert isinstance(ends(list(host.stream(race, never)))[0], Finished)


def test_what_is_asked_of_one_column_goes_where_the_column_runs() -> None:
    def sides(command: Any) -> list[tuple[tuple[int, ...], bool]]:
        return [(share.columns, share.lent) for share in shares_of(command, lent)]

    assert sides(MIXED) == [((0, 2), True), ((1, 3), False)]
    assert sides(SaveColumn(MIXED, 2, AnswerSoFar())) == [((0,), True)]
    assert sides(SaveColumn(MIXED, 1, AnswerSoFar())) == [((0,), False)]
    assert sides(Measure(MIXED.columns, FAKE)) == [((0, 2), True), ((1, 3), False)]
    assert sides(ForgetVisitor("somebody")) == [((), False)]
    earlier = tuple(AnswerSoFar((n,)) for n in range(4))
    parts = [share.command for share in shares_of(replace(MIXED, earlier=earlier, first=3), lent)]
    assert [(part.earlier, part.first) for part in parts if isinstance(part, Race)] == [
        ((earlier[0], earlier[2]), 0),
        ((earlier[1], earlier[3]), 1),
    ]
    assert [on_cuda(ModelSpec("m", "torch", device=d)) for d in ("CPU", "CUDA", "cuda:0")] == [
        False,
        True,
        True,
    ]
    assert not on_cuda(ModelSpec("m", "openvino", device="AUTO"))


def test_a_visitors_caches_go_when_the_next_one_comes(host: ZeroGpuHost) -> None:
    """What a fork holds of a departed visitor is forgotten without another call."""

    def reused(scope: Visitor) -> int:
        column = parse_column("kv@fake/fp32/lent:cache=session")
        race = replace(MIXED, columns=(column,), scope=scope)
        return sum(getattr(event, "reused", 0) for event in host.stream(race, never))

    one, other = Visitor("one"), Visitor("other")
    assert (reused(one), reused(one) > 0, reused(other), reused(one)) == (0, True, 0, 0)


@pytest.mark.spaces
def test_models_that_were_placed_before_the_fork_are_loaded_by_none(
    worker: ProcessHost, lending: Lending, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a dozen runs on a machine with nine processes to two cores, one fork of a process that had
    computed with torch hung in its first pass, while forks computed with several threads.
    """
    folder = tmp_path / "tiny"
    families.make("llama", folder)
    spec = ModelSpec(str(folder), "torch")
    place(spec, print)

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("weights were loaded once more")

    monkeypatch.setattr("backend.engines.torch.engine._load", fail)
    monkeypatch.setattr(zero_gpu, "LONGEST", 600)
    monkeypatch.setattr(zero_gpu, "SHORTEST", 600)  # a busy machine imports for long
    host = ZeroGpuHost(worker, lending, lambda each: each.engine == "torch")
    columns = (parse_column("kv"), parse_column("lookup"))
    race = Race(Request("Who is it?", max_new_tokens=8, chat=False), columns, spec)
    found = ends(list(host.stream(race, never)))
    assert all(isinstance(event, Finished) for event in found.values()), found
