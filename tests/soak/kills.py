"""Workers that die, hang or run out of memory at random moments of a race.

The racer is told so in a sentence, what had ended stays as it was, and the next race runs.
"""

import asyncio
import random
import re
import resource
import signal
from collections.abc import Callable

import httpx
import psutil
from soak.client import Client, View, disturbed, text_of
from soak.forms import ended, endless, form, racing
from soak.report import BROKEN, Log, Result
from soak.server import Server, private_cache

#: Seconds within which a harmed worker must be noticed, and within which the next race must end.
NOTICED = 10.0

#: Seconds that a racer may wait for any word at all.
PATIENCE = 60.0

#: What a column says that its worker took down with it. Python itself raises SystemError where it
#: has no memory left for a MemoryError.
SENTENCE = re.compile(r"[A-Z].*(\bworker\b|\bmemory\b|SystemError).*\.$", re.DOTALL)

#: What is in the log of a worker without memory.
STARVED = ("MemoryError", "SystemError")


def _killed(worker: psutil.Process) -> None:
    worker.kill()


def _halted(worker: psutil.Process) -> None:
    worker.send_signal(signal.SIGSTOP)


def _starved(worker: psutil.Process) -> None:
    """Not a byte more: what it asks for next it does not get."""
    worker.rlimit(psutil.RLIMIT_AS, (1, resource.RLIM_INFINITY))


def _segfaulted(worker: psutil.Process) -> None:
    worker.send_signal(signal.SIGSEGV)


Harm = Callable[[psutil.Process], None]
HARMS: dict[str, Harm] = {
    "SIGKILL": _killed,
    "SIGSTOP": _halted,
    "out of memory": _starved,
    "SIGSEGV": _segfaulted,
}


UNKEPT = "results of others, or ended columns, not kept"
UNTOLD = "races without the sentence"
ORPHANS = "workers left behind"


def kills(count: int = 100, *, seed: int = 0) -> Result:
    """Harm the worker so often, each kind in turn."""
    chance, log = random.Random(seed), Log(UNKEPT, UNTOLD, ORPHANS)
    with private_cache() as cache, Server("--fake", cache=cache) as server:
        asyncio.run(_kills(server, count, chance, log))
        log.wrong[BROKEN] += [b for b in server.broken if not any(name in b for name in STARVED)]
    return log.result("kills", f"{count} workers, seed {seed}", log.longest(NOTICED))


async def _kills(server: Server, count: int, chance: random.Random, log: Log) -> None:
    # The other visitor's race has ended; it must go on from there whatever happens.
    async with Client(server.address) as other, Client(server.address) as racer:
        kept = await other.last(**form("The other's race", 12))
        for number in range(count):
            name = list(HARMS)[number % len(HARMS)]
            await _harm(server, racer, name, chance, log)
            begun = asyncio.get_running_loop().time()
            kept = await _goes_on(other, kept, name, log)
            log.took("seconds of the next race", asyncio.get_running_loop().time() - begun)


async def _harm(server: Server, racer: Client, name: str, chance: random.Random, log: Log) -> None:
    worker = server.worker()
    delay = chance.uniform(0, 0.8)
    last = f"seconds from {name} to the racer's last view"
    running = disturbed(
        racer, racing, delay, lambda: HARMS[name](worker), **endless("stateless:limit=4", "kv")
    )
    try:
        view, seconds = await asyncio.wait_for(running, PATIENCE)
    except TimeoutError:
        log.took(last, PATIENCE)
        log.flaw(UNTOLD, f"{name} after {delay:.2f} s: nothing was said within {PATIENCE:g} s")
        worker.kill()  # so that the others go on
        return
    except httpx.HTTPError as error:
        log.flaw(UNTOLD, f"{name} after {delay:.2f} s: {error}")
        return
    log.took(last, seconds)
    _judge(view, name, delay, log)
    if worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE:
        if name == "out of memory":  # it may have survived; memory is there again
            worker.rlimit(psutil.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        else:
            log.flaw(ORPHANS, f"{name} after {delay:.2f} s: process {worker.status()}")
            worker.kill()


def _judge(view: View, name: str, delay: float, log: Log) -> None:
    """Are the ended columns kept, and is the sentence there for the others?"""
    where = f"{name} after {delay:.2f} s"
    if not ended(view):
        log.flaw(UNTOLD, f"{where}: the last view is {str(view)[:200]}")
        return
    for column in view["columns"]:
        log.counts[f"columns {column['state']} at {name}"] += 1
        if column["state"] == "failed" and not SENTENCE.fullmatch(column["message"]):
            log.flaw(UNTOLD, f"{where}: {column['title']} says {column['message']!r}")
        if column["state"] == "done" and not text_of(column):
            log.flaw(UNKEPT, f"{where}: the text of {column['title']} is gone")


async def _goes_on(other: Client, kept: View, name: str, log: Log) -> View:
    """The other visitor continues their race: it begins with all that it had."""
    try:
        view = await asyncio.wait_for(other.last("ask.play", max_new_tokens=2), PATIENCE)
    except (TimeoutError, httpx.HTTPError) as error:
        log.flaw(UNKEPT, f"after {name}, the other's race did not go on: {error!r}")
        return kept
    before, after = ([text_of(c) for c in v.get("columns", ())] for v in (kept, view))
    if not ended(view) or not all(b.startswith(a) for a, b in zip(before, after, strict=True)):
        log.flaw(UNKEPT, f"after {name}: {before} became {after or str(view)[:200]}")
        return kept
    return view
