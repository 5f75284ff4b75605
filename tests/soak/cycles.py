"""Races that are stopped at random moments: idle at once, and nothing is left behind."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from soak.client import Client, View, disturbed
from soak.forms import asked, decoding, ended, endless, form, racing
from soak.report import BROKEN, Log, Result, at_most, noted
from soak.server import Server, private_cache, until

#: Seconds within which a stopped race must have ended and left the line.
IDLE = 1.0

#: Threads and descriptors that may come and go: those of the pool that answers small requests.
SLACK = 8

#: Seconds for what was opened to be closed again.
SETTLE = 30.0


@dataclass(frozen=True, slots=True)
class Moment:
    """What runs, and how long after which view the stop may come at most."""

    name: str
    form: Mapping[str, Any]
    seen: Callable[[View], bool]
    within: float


#: Columns whose grammars compile slowly.
GRAMMARS = ("grammar:grammar=c", "grammar:grammar=python", "grammar:grammar=sql")

MOMENTS = (
    Moment("prefill", form("who " * 950, 100, "kv", "lookup", model="1"), asked, 0.4),
    Moment("decode", endless("kv", "lookup", "speculative"), decoding, 0.6),
    Moment("grammar compile", form("A program", 400, *GRAMMARS, model="1"), asked, 0.8),
    Moment("any", endless("stateless", "kv"), racing, 0.3),
)

#: On the built-in model, whose worker is killed first: the load is what is stopped.
LOAD = Moment("model load", form("Hello there", 64, "kv", "speculative"), asked, 4.0)


ODD = "races that were not stopped and did not end"


def cycles(count: int = 500, loads: int = 20, *, seed: int = 0) -> Result:
    """Stop so many races on the fake engine, and so many that load the built-in model."""
    chance, log = random.Random(seed), Log(ODD)
    with private_cache() as cache, Server("--fake", cache=cache) as server:
        asyncio.run(_cycles(server, 4, chance, Log(ODD)))
        before = server.held()
        begun = time.monotonic()
        asyncio.run(_cycles(server, count, chance, log))
        seconds = time.monotonic() - begun
        left = _left(server, before)
        log.wrong[BROKEN] += server.broken
    if loads:
        with private_cache(filled=True) as cache, Server(cache=cache) as server:
            asyncio.run(_loads(server, loads, chance, log))
            log.wrong[BROKEN] += server.broken
    figures = [
        *log.longest(IDLE),
        noted("seconds a cycle", seconds / max(1, count)),
        at_most("threads more than before", left[0], SLACK),
        at_most("file descriptors more than before", left[1], SLACK),
        at_most("processes more than before", left[2], 1),  # the grammar editor's child
    ]
    return log.result("cycles", f"{count} on fake, {loads} loads, seed {seed}", figures)


def _left(server: Server, before: tuple[int, int, int]) -> tuple[int, int, int]:
    """What is held more than before, once it has settled."""

    def more() -> tuple[int, int, int]:
        threads, files, children = (b - a for a, b in zip(before, server.held(), strict=True))
        return threads, files, children

    with contextlib.suppress(TimeoutError):  # the figures say so
        until(lambda: max(more()[:2]) <= SLACK and more()[2] <= 1, SETTLE)
    return more()


async def _cycles(server: Server, count: int, chance: random.Random, log: Log) -> None:
    left = count
    while left > 0:
        async with Client(server.address) as client:
            for _ in range(min(left, 10)):
                left -= 1
                await _stopped(client, server, chance.choice(MOMENTS), chance, log)


async def _loads(server: Server, count: int, chance: random.Random, log: Log) -> None:
    async with Client(server.address) as client:
        for _ in range(count):
            server.worker().kill()
            await _stopped(client, server, LOAD, chance, log)


async def _stopped(
    client: Client, server: Server, moment: Moment, chance: random.Random, log: Log
) -> None:
    """One race, stopped; how long it took, and whether the line is free for the next."""
    delay = chance.uniform(0, moment.within)
    try:
        view, seconds = await asyncio.wait_for(
            disturbed(client, moment.seen, delay, client.stop, **moment.form), 60
        )
    except (TimeoutError, httpx.HTTPError) as error:
        log.flaw(ODD, f"{moment.name}, after {delay:.2f} s: {error!r}")
        return
    log.took(f"seconds until idle, stopped in {moment.name}", seconds)
    if not ended(view):
        log.flaw(ODD, f"{moment.name}, after {delay:.2f} s: {str(view)[:200]}")
    for column in view.get("columns", ()):
        log.counts[f"columns that were {column['state']}"] += 1
