"""The page's process ends in the middle of a race: nothing is left, and the next start works."""

import asyncio
import itertools
import json
import os
import random
import signal
from pathlib import Path

import psutil
from soak.client import Client
from soak.forms import ended, endless, form, racing
from soak.report import BROKEN, Log, Result
from soak.server import Server, private_cache, until

#: Seconds within which every process of a page that ended must be gone.
GONE = 3.0

ORPHANS = "processes left behind"
UNSOUND = "files of the cache that are half written"
FAILING = "starts that failed"

SIGNALS = (signal.SIGTERM, signal.SIGKILL, signal.SIGINT)


def page(count: int = 30, *, seed: int = 0) -> Result:
    """End the page so often, by each signal in turn, one after another on one cache and port."""
    chance, log = random.Random(seed), Log(ORPHANS, UNSOUND, FAILING)
    with private_cache() as cache:
        for sign in itertools.islice(itertools.cycle(SIGNALS), count):
            try:
                with Server("--fake", cache=cache) as server:
                    asyncio.run(until_racing(server, chance.uniform(0, 1)))
                    seconds = _end(server, sign, log)
                    # A page that is told to end says nothing of it.
                    log.wrong[BROKEN] += [b for b in server.broken if "KeyboardInterrupt" not in b]
            except (RuntimeError, TimeoutError) as error:
                log.flaw(FAILING, f"start before {sign.name}: {error}")
                continue
            log.took(f"seconds until all is gone after {sign.name}", seconds)
            log.wrong[UNSOUND] += [f"after {sign.name}: {flaw}" for flaw in _flaws(cache)]
        with Server("--fake", cache=cache) as server:
            if not asyncio.run(_works(server)):
                log.flaw(FAILING, "the last start runs no race")
    return log.result("page", f"{count} ends, seed {seed}", log.longest(GONE))


async def until_racing(server: Server, delay: float) -> None:
    """Race, save a column, race on, and return in the middle of that."""
    async with Client(server.address) as client:
        first = await client.last(**form("A race before", 8))
        if not ended(first):
            raise RuntimeError(f"no race after the start: {str(first)[:200]}")
        await client.call("save.click")
        async for view in client.race(**endless("kv", "lookup")):
            if racing(view):
                break
        await asyncio.sleep(delay)


async def _works(server: Server) -> bool:
    async with Client(server.address) as client:
        return ended(await client.last(**form("After all", 8)))


def _end(server: Server, sign: signal.Signals, log: Log) -> float:
    """Send the signal, as a terminal does to the whole group if it is Ctrl-C: the seconds until no
    process is left.
    """
    family = server.family()
    if sign == signal.SIGINT:
        os.killpg(server.process.pid, sign)
    else:
        server.end(sign)

    def left() -> list[psutil.Process]:
        return [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    try:
        return until(lambda: server.process.poll() is not None and not left(), 20)
    except TimeoutError:
        log.wrong[ORPHANS] += [f"{sign.name}: {p.name()} {p.status()}" for p in left()]
        if server.process.poll() is None:
            log.flaw(ORPHANS, f"{sign.name}: the page itself")
        return 20.0


def _flaws(cache: Path) -> list[str]:
    """Files that a killed process may leave: anything partial, and JSON that does not parse."""
    found = [f"{p.relative_to(cache)}" for p in cache.rglob("*") if "partial" in p.name]
    for path in cache.rglob("*.json"):
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            found.append(f"{path.relative_to(cache)} is no JSON")
    return found
