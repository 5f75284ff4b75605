"""A race on a GPU that Spaces lend crosses a fork, hears of Stop, and a refusal is a sentence."""

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hosting import streamed

from backend.events import Failed, Finished, Step
from backend.racing.hosts import InlineHost, ZeroGpuHost
from backend.racing.race import Race
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request

# A fork of a process with threads: what Spaces do, and Python 3.12 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")

COLUMNS = tuple(map(parse_column, ("kv", "lookup")))
RACE = Race(Request("Who is it?", max_new_tokens=25), COLUMNS, ModelSpec("fake", "fake"))


def lend(*, duration: int) -> Callable[[Any], Any]:
    """Run the generator as Spaces do: in a process that is forked for the call."""

    def decorated(task: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def call(*arguments: Any) -> Iterator[Any]:
            context = multiprocessing.get_context("fork")
            ours, theirs = context.Pipe()

            def run() -> None:
                for value in task(*arguments):
                    theirs.send(value)
                theirs.send(None)

            process = context.Process(target=run, daemon=True)
            process.start()
            while (value := ours.recv()) is not None:
                yield value
            process.join()

        return call

    return decorated


def test_a_race_writes_the_same_texts_on_both_sides_of_a_fork() -> None:
    def texts(host: Any) -> list[tuple[int, list[int]]]:
        events = streamed(host, RACE, lambda: False)
        return sorted((e.column, e.tokens) for e in events if isinstance(e, Step))

    forked = texts(ZeroGpuHost(lend))
    assert forked == texts(InlineHost())
    assert {column for column, _ in forked} == {0, 1}


def test_stop_reaches_the_fork() -> None:
    stopped = threading.Event()
    endless = Race(Request("Who?", max_new_tokens=4000), COLUMNS, ModelSpec("fake-endless", "fake"))
    ends = []
    for event in streamed(ZeroGpuHost(lend), endless, stopped.is_set):
        if isinstance(event, Step):
            stopped.set()
        if isinstance(event, Finished):
            ends.append(event.reason)
    assert ends == ["stopped", "stopped"]


def test_a_refusal_fails_every_column_with_what_spaces_say() -> None:
    class QuotaError(Exception):
        message = "Your quota is used up."

    def refuse(*, duration: int) -> Callable[[Any], Any]:
        def call(*_: Any) -> Iterator[Any]:
            raise QuotaError
            yield

        return lambda _task: call

    failed = [
        e for e in streamed(ZeroGpuHost(refuse), RACE, lambda: False) if isinstance(e, Failed)
    ]
    assert [event.column for event in failed] == [0, 1]
    assert all("quota is used up" in event.message for event in failed)
