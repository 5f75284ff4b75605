"""Figures for the operator: each is what happened, and only this machine can read them."""

import asyncio
import socket
import urllib.request

import pytest
from clock import Clock

from backend.errors import DerbyError
from backend.events import Failed, Finished
from backend.limits import Limits
from backend.racing.commands import ForgetVisitor
from backend.racing.hosts.host import HostFacts
from backend.racing.race import Race
from backend.strategies.column import default_column
from backend.types import ModelSpec, Request
from backend.web.metrics import Metrics
from backend.web.presence import Presence
from backend.web.visitors import GRACE, Visitors

RACE = Race(Request("Hi"), (default_column("kv"), default_column("lookup")), ModelSpec("fake"))


class Host:
    """Its races end with these events at once, or, without any, once they are stopped."""

    def __init__(self, *events: Failed | Finished) -> None:
        self.events = events

    def stream(self, command, stopped):  # type: ignore[no-untyped-def]
        while not self.events and not stopped():
            pass
        yield from self.events or [Finished(i, "stopped", []) for i in range(command.width)]

    def facts(self) -> HostFacts:
        return HostFacts({"out of memory": 2}, 3_000_000)

    def close(self) -> None: ...


async def race(visitors: Visitors, name: str) -> None:
    async for _ in visitors.watch(name, RACE):
        pass


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"decode_derby_{name}", labels) or 0.0


def test_what_races_did_is_counted() -> None:
    done, failed = Finished(0, "end of text", []), Failed(1, "It is broken.")
    for events, how, columns in (
        ((done, Finished(1, "end of text", [])), "finished", 0),
        ((done, failed), "finished", 1),
        ((Failed(0, "It is broken."), failed), "failed", 2),
    ):
        host = Host(*events)
        metrics = Metrics(host)
        asyncio.run(race(Visitors(host, tally=metrics), "a"))
        assert value(metrics, "races_begun_total") == 1
        assert value(metrics, "race_wait_seconds_count") == 1
        assert value(metrics, "races_ended_total", how=how) == 1
        assert value(metrics, "columns_failed_total") == columns


def test_saving_a_column_is_no_race() -> None:
    host = Host(Finished(0, "end of text", []))
    metrics = Metrics(host)
    visitors = Visitors(host, tally=metrics)
    asyncio.run(visitors.save("a", ForgetVisitor("a"), default_column("kv")))
    assert value(metrics, "races_begun_total") == 0
    assert value(metrics, "races_ended_total", how="finished") == 0


def test_what_was_refused_or_ended_by_a_limit_is_counted_by_reason() -> None:
    async def scene() -> None:
        host, clock = Host(), Clock()
        metrics, presence = Metrics(host), Presence(clock)
        limits = Limits(waiting=1, races_per_hour=1, race_seconds=60)
        visitors = Visitors(host, limits, presence, tally=metrics)
        metrics.waiting = lambda: visitors.waiting
        for name in "abc":
            presence.opened(name)
        races = [asyncio.create_task(race(visitors, name)) for name in "ab"]
        while visitors.count < 2 or not value(metrics, "races_begun_total"):
            await asyncio.sleep(0.01)
        assert value(metrics, "races_waiting") == 1
        for name, reason in (("c", "line full"), ("a", "races per hour")):
            with pytest.raises(DerbyError):
                await race(visitors, name)
            assert value(metrics, "races_refused_total", reason=reason) == 1
        clock.time += 60
        visitors.sweep()
        await races[0]
        presence.closed("b")
        races.append(asyncio.create_task(race(visitors, "c")))
        while visitors.count < 2:
            await asyncio.sleep(0.01)
        clock.time += GRACE
        visitors.sweep()
        await races[1]
        visitors.stop("c")
        await races[2]
        for reason in ("time", "absent"):
            assert value(metrics, "races_put_out_total", reason=reason) == 1
        assert value(metrics, "races_ended_total", how="stopped") == 3

    asyncio.run(asyncio.wait_for(scene(), 30))


def test_they_are_served_as_text_to_this_machine() -> None:
    metrics = Metrics(Host())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    close = metrics.serve(port)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
        with pytest.raises(DerbyError, match="choose another port"):
            metrics.serve(port)
    finally:
        close()
    assert 'decode_derby_worker_restarts_total{cause="out of memory"} 2.0' in text
    assert 'decode_derby_memory_bytes{process="worker"} 3e+06' in text
    assert 'decode_derby_memory_bytes{process="page"}' in text
    assert "decode_derby_races_waiting 0.0" in text
