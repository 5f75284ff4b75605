"""Readers who take what is sent to them at a thousand bytes a second, beside one who does not."""

import asyncio
import contextlib
import socket
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from soak.client import Client, RefusedError
from soak.forms import ended, form
from soak.report import BROKEN, Log, Result, at_least, at_most, noted, within
from soak.server import Server, private_cache

#: Bytes a second of a slow reader, and megabytes by which the page may grow for all of them.
RATE, GROWTH = 1000, 50

#: Seconds by which another visitor's race may take longer than beside readers who keep up.
HINDERED = 1.0

#: Seconds between two races of one reader at most.
PERIOD = 8.0


LOST = "races of the other without an end"


@dataclass
class Phase:
    """What was seen while the readers read at one rate."""

    probes: list[float] = field(default_factory=list)
    rss: list[int] = field(default_factory=list)
    refused: int = 0
    read: int = 0


def slow(readers: int = 20, seconds: float = 600.0) -> Result:
    """Have so many readers race for so long; for a fifth of it before, they read all at once."""
    log = Log(LOST)
    with private_cache() as cache, Server("--fake", cache=cache) as server:
        usually = max(seconds / 5, min(seconds, 2 * PERIOD))
        fast = asyncio.run(_phase(server, readers, usually, 0, log))
        begun = server.rss()[0]
        slowed = asyncio.run(_phase(server, readers, seconds, RATE, log))
        log.wrong[BROKEN] += server.broken
    grown = (max(slowed.rss, default=0) - begun) / 1e6
    usual, beside = (statistics.median(p.probes or [0.0]) for p in (fast, slowed))
    figures = [
        at_most("growth of the page's memory, MB", grown, GROWTH),
        noted("seconds of another's race beside readers who keep up, median", usual),
        noted("seconds of another's race beside slow readers, median", beside),
        within("seconds that it takes longer", beside - usual, HINDERED),
        at_least("races of the other", len(slowed.probes), 1),
        noted("kilobytes that each slow reader took", slowed.read / 1000 / readers),
        noted("refusals", fast.refused + slowed.refused),
    ]
    return log.result("slow", f"{readers} readers, {seconds:g} s", figures)


async def _phase(server: Server, readers: int, seconds: float, rate: int, log: Log) -> Phase:
    """All readers at `rate` bytes a second, 0 for as fast as they can, and one who probes."""
    seen, end = Phase(), time.monotonic() + seconds
    tasks = [_reader(server, number, readers, end, rate, seen) for number in range(readers)]
    await asyncio.gather(_probe(server, end, seen, log), *tasks)
    return seen


async def _probe(server: Server, end: float, seen: Phase, log: Log) -> None:
    async with Client(server.address) as client:
        while time.monotonic() < end:
            begun = time.monotonic()
            view = await asyncio.wait_for(client.last(**form("another", 8)), 120)
            if ended(view):
                seen.probes.append(time.monotonic() - begun)
            elif "alert" in view:
                seen.refused += 1
            else:
                log.flaw(LOST, f"the last view is {str(view)[:200]}")
            seen.rss.append(server.rss()[0])
            await asyncio.sleep(0.5)


async def _reader(
    server: Server, number: int, readers: int, end: float, rate: int, seen: Phase
) -> None:
    """Race again and again, reading all that comes on a socket of our own."""
    period = min(PERIOD, (end - time.monotonic()) / 3)
    await asyncio.sleep(period * number / readers)
    async with Client(server.address) as client:
        while time.monotonic() < end:
            with contextlib.suppress(RefusedError):
                await client.call("ask.submit", **form(f"reader {number}", 1200, "kv", "lookup"))
            reading = asyncio.create_task(_read(server, client, rate, seen))
            await asyncio.wait([reading], timeout=max(0.1, min(period, end - time.monotonic())))
            # A slow one is not through with it; what it has not read is left to the server.
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


async def _read(server: Server, client: Client, rate: int, seen: Phase) -> None:
    """Read the stream of events at `rate` bytes a second."""
    loop = asyncio.get_running_loop()
    with socket.socket() as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.setblocking(False)
        await loop.sock_connect(plain, ("127.0.0.1", server.port))
        cookies = "; ".join(f"{c.name}={c.value}" for c in client.http.cookies.jar)
        head: Sequence[str] = (
            "GET /derby/stream HTTP/1.1",
            f"Host: 127.0.0.1:{server.port}",
            *([f"Cookie: {cookies}"] if cookies else []),
            "",
            "",
        )
        await loop.sock_sendall(plain, "\r\n".join(head).encode())
        while chunk := await loop.sock_recv(plain, rate // 10 or 65_536):
            seen.read += len(chunk) if rate else 0
            if b"event: end" in chunk:
                return
            if rate:
                await asyncio.sleep(0.1)
