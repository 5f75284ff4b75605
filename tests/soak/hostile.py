"""Visitors who mean harm: what a few kilobytes, many connections and vanished callers can do.

A refusal, 4xx or 503, is theirs to bear; any other 5xx is a flaw of the page.
"""

import asyncio
import json
import random
import time
import zlib
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import httpx
from recordings import race_of
from soak.client import Client, RefusedError, place_of, said_of
from soak.forms import FAKE_SLOW, form
from soak.report import BROKEN, Log

from backend.records.link import encode
from backend.web.api import RaceCall

#: Connections that one of them holds at a time, at most.
CONNECTIONS = 256

#: Seconds for which they hold what they hold, at most, and that one attack may take.
HELD, LONGEST = 20.0, 120.0

#: Tokens of a race that is dropped: two seconds of the slow fake model. The other races are as
#: short as the others' own, for a long one keeps the line in all fairness.
DROPPED, TOKENS = 100, 12

_AGENTS, _CALL, _JOIN = "/mcp", "/gradio_api/run/predict", "/gradio_api/queue/join"
_JSON = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


@dataclass(frozen=True)
class Attacker:
    """`seconds`: for how long connections are held."""

    address: str
    name: str
    chance: random.Random
    log: Log
    seconds: float

    def http(self) -> httpx.AsyncClient:
        """A client without a cookie, which opens a connection for each request."""
        return httpx.AsyncClient(
            base_url=self.address,
            headers=_JSON | said_of(place_of(self.name)),
            timeout=LONGEST,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            verify=False,  # noqa: S501 (plain HTTP)
            trust_env=False,
        )

    async def post(self, http: httpx.AsyncClient, path: str, body: bytes) -> httpx.Response:
        answer = await http.post(path, content=body)
        self.answered(answer.status_code, path)
        return answer

    def answered(self, status: int, path: str) -> None:
        """Count an answer; a breakdown is a flaw."""
        self.log.counts[f"hostile ones answered HTTP {status}"] += 1
        if status >= 500 and status != 503:
            self.log.flaw(BROKEN, f"{self.name}: HTTP {status} at {path}")

    async def side_by_side(self, acts: Iterable[Awaitable[object]]) -> None:
        """Do all of it at once. Raises what is wrong with the harness itself."""

        async def one(act: Awaitable[object]) -> None:
            with self.borne():
                await act

        await asyncio.gather(*map(one, acts))

    @contextmanager
    def borne(self) -> Iterator[None]:
        """Count refusals, ended connections and what takes too long, and let them be."""
        try:
            yield
        except TimeoutError:
            self.log.counts["hostile ones left without an answer"] += 1
        except RefusedError as refusal:
            self.answered(refusal.status, "a call")
        except (httpx.HTTPError, OSError):
            self.log.counts["hostile ones cut off"] += 1

    async def plain(self, sent: bytes, seconds: float) -> None:
        """Send bytes on a socket of its own, and close it so many seconds later."""
        port = httpx.URL(self.address).port
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(sent)
            await writer.drain()
            await asyncio.sleep(seconds)
        finally:
            writer.close()


async def attack(
    address: str, name: str, chance: random.Random, end: float, log: Log, pause: float
) -> None:
    """One hostile visitor's life until `end`: attacks, those first that `log` counts fewest of."""
    who = Attacker(address, name, chance, log, min(HELD, pause))
    for _ in ATTACKS:
        if time.monotonic() > end:
            return
        act = min(ATTACKS, key=lambda each: (log.counts[counted(each)], chance.random()))
        log.counts[counted(act)] += 1
        with who.borne():
            await asyncio.wait_for(act(who), LONGEST)
        await asyncio.sleep(chance.uniform(0, pause))


async def let_in(address: str) -> bool:
    """Whether an agent at an address of its own may begin."""
    async with httpx.AsyncClient(
        base_url=address,
        headers=_JSON | said_of("10.2.0.1"),
        timeout=LONGEST,
        trust_env=False,
    ) as http:
        with suppress(httpx.HTTPError):
            answer = await http.post(_AGENTS, content=_said("initialize"))
            return answer.is_success
        return False


def counted(act: "Attack") -> str:
    """What a log counts an attack as."""
    return f"attacks: {act.__name__[1:].replace('_', ' ')}"


async def _brackets(who: Attacker) -> None:
    """What no reader of JSON can read without running out of stack."""
    async with who.http() as http:
        await who.side_by_side(who.post(http, _AGENTS, b"[" * 3000) for _ in range(40))


async def _half_sent_bodies(who: Attacker) -> None:
    """Half of a body, and then nobody is there."""

    def half(path: str) -> bytes:
        headers = {**_JSON, "Host": httpx.URL(who.address).netloc.decode(), "Content-Length": 3000}
        lines = [f"POST {path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
        return "\r\n".join(lines).encode() + b"[" * 1500

    paths = (_AGENTS, _AGENTS, _AGENTS, _CALL)
    await who.side_by_side(
        who.plain(half(paths[n % len(paths)]), who.chance.uniform(0, 1)) for n in range(130)
    )


async def _many_agents(who: Attacker) -> None:
    """Those who begin, and say nothing more."""
    async with who.http() as http:
        await who.side_by_side(who.post(http, _AGENTS, _said("initialize")) for _ in range(100))


async def _dropped_races(who: Attacker) -> None:
    """Agents who ask for a race and hang up as soon as they hear of it."""
    await who.side_by_side(_dropped(who) for _ in range(8))


async def _dropped(who: Attacker) -> None:
    async with who.http() as http:
        await who.post(http, _AGENTS, _said("initialize"))
        await who.post(http, _AGENTS, _said("notifications/initialized", None))
        asked = {"prompt": who.name, "columns": ["kv"], "max_new_tokens": DROPPED}
        call = {"name": "race", "arguments": {**asked, "model": "fake-slow"}}
        body = _said("tools/call", {**call, "_meta": {"progressToken": 1}})
        async with http.stream("POST", _AGENTS, content=body) as answer:
            who.answered(answer.status_code, _AGENTS)
            async for _ in answer.aiter_lines():
                break


_HELLO: Mapping[str, Any] = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "nobody", "version": "1"},
}


def _said(method: str, params: Mapping[str, Any] | None = _HELLO) -> bytes:
    """A message of the agents' protocol: a notification if it has no parameters."""
    told = {} if params is None else {"id": 1, "params": params}
    return json.dumps({"jsonrpc": "2.0", "method": method, **told}).encode()


async def _many_sessions(who: Attacker) -> None:
    """One browser in whose name forty sessions ask for races, each holding a stream."""
    async with Client(who.address, place=place_of(who.name)) as browser:
        asked = RaceCall.model_validate(
            {"prompt": who.name, "max_new_tokens": TOKENS, "model": "fake-slow"}
        )
        race = browser.body(browser.page.actions["race"], [*asked.model_dump().values()])

        async def one(number: int) -> None:
            session = f"{browser.session}{number}"
            body = json.dumps({**race, "session_hash": session}).encode()
            answer = await browser.http.post(_JOIN, content=body, headers=_JSON)
            who.answered(answer.status_code, _JOIN)
            own = f"/gradio_api/queue/data?session_hash={session}"
            stream = own if number % 2 else "/derby/stream"
            async with browser.http.stream("GET", stream) as held:
                who.answered(held.status_code, stream.partition("?")[0])
                await asyncio.sleep(who.seconds)

        await who.side_by_side(map(one, range(40)))


async def _dropped_cookies(who: Attacker) -> None:
    """A script that comes back as somebody else each time, and waits for none of its races."""

    async def one(number: int) -> None:
        async with Client(who.address, place=place_of(who.name)) as client:
            await client.call(
                "ask.submit", **form(f"{who.name}, {number}", TOKENS, model=FAKE_SLOW)
            )

    await who.side_by_side(map(one, range(10)))


async def _half_request_lines(who: Attacker) -> None:
    """Connections that are always just about to ask for something."""
    await who.side_by_side(who.plain(b"GET /derby/str", who.seconds) for _ in range(80))


async def _deep_and_huge_calls(who: Attacker) -> None:
    async with who.http() as http:
        for body in _calls():
            with who.borne():
                await who.post(http, _CALL, body)


@lru_cache
def _calls() -> tuple[bytes, ...]:
    call = b'{"fn_index": 0, "session_hash": "nobody", "data": [%s]}'
    return (
        b"[" * 3000,
        b"[" * 200_000,
        b'{"data":' * 5000,
        call % (b"[" * 900 + b"]" * 900),
        call % (b"0," * 100_000 + b"0"),
        call % (b"1" * 5000),
        call % (b'"%s"' % (b"x" * 2_000_000)),
        call % b'"\\ud83d", NaN, 1e999',
        b"\xff" * 3000,
    )


async def _damaged_links(who: Attacker) -> None:
    async with Client(who.address, place=place_of(who.name)) as client:
        for text in (*_damaged(who.chance), _swelling()):
            body = client.body(client.page.actions["replay"], [text])
            with who.borne():
                answer = await client.http.post(_JOIN, json=body)
                who.answered(answer.status_code, _JOIN)
                if answer.is_success:
                    async with asyncio.timeout(who.seconds):
                        await _replied(client)


async def _replied(client: Client) -> None:
    query = {"session_hash": client.session}
    async with client.http.stream("GET", "/gradio_api/queue/data", params=query) as stream:
        async for line in stream.aiter_lines():
            if "process_completed" in line:
                return


@lru_cache
def _link() -> str:
    return encode(race_of("kv lookup"))


def _damaged(chance: random.Random) -> tuple[str, ...]:
    """A race's link with a character replaced, cut, written twice, and none at all."""
    text = _link()
    place = chance.randrange(1, len(text))
    return (
        f"{text[:place]}{chance.choice('AZaz09-_')}{text[place + 1 :]}",
        text[:place],
        text + text,
        "b" + "A" * 60_000,
    )


@lru_cache
def _swelling() -> str:
    """Forty megabytes of brackets, in as many characters as a link may have."""
    return "b" + urlsafe_b64encode(zlib.compress(b"[" * 40_000_000, 9)).decode().rstrip("=")


Attack = Callable[[Attacker], Awaitable[None]]
ATTACKS: tuple[Attack, ...] = (
    _brackets,
    _half_sent_bodies,
    _many_agents,
    _dropped_races,
    _many_sessions,
    _dropped_cookies,
    _half_request_lines,
    _deep_and_huge_calls,
    _damaged_links,
)
