"""A crowd on one page with the fake engine: visitors arrive, race, send garbage and vanish.

Each prompt carries its visitor's name, and the fake model's text is a hash of the prompt: a text
that is not this prompt's is somebody else's. Fair order is read off each race's own views: the
number of races ahead of it never grows. Some visitors may be hostile: the others must not wait
longer for it.
"""

import asyncio
import contextlib
import itertools
import math
import random
import re
import resource
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import httpx
from lib import naive
from soak.client import Client, RefusedError, View, place_of, text_of
from soak.forms import FAKE, FAKE_SLOW, form, racing
from soak.hostile import ATTACKS, CONNECTIONS, attack, counted, let_in
from soak.report import (
    BROKEN,
    Figure,
    Log,
    Result,
    at_least,
    at_most,
    curve,
    noted,
    within,
)
from soak.server import Server, private_cache, until

from backend.engines.fake import FakeEngine
from backend.types import Request

#: Columns that write the same text.
LINEUP = ("kv", "lookup", "speculative")

#: Tokens of the longest text that any act asks for, continued once.
LONGEST = 120

#: Seconds that a race may take to come to its end, the wait in line included.
RACE = 180.0

#: Share by which memory may grow after the warm-up, and the seconds of warm-up.
GROWTH = 0.02
WARM_UP = 600.0

#: Seconds between two looks at memory.
LOOK = 5.0

#: Seconds of a round of hostile visitors, at most, and those after a change that count for nobody.
ROUND, SETTLE = 600.0, 20.0

#: Connections that stay open though nobody reads them, at most, and for how long.
DEAF, DEAF_SECONDS = 20, 60.0

#: Processes below the page: the worker, what grammars are read in, and the tracker of resources.
PROCESSES = 6

_AHEAD = re.compile(r"(One|\d+) races? (?:is|are) ahead")


CROSSED = "texts of another prompt"
OVERTAKEN = "races that were overtaken"
LOST = "races neither run nor refused"
SHUT_OUT = "agents who are not let in"
RACED = "seconds of a race, its wait included"

#: Share by which others' races may take longer beside hostile visitors, and by which more of all
#: that they ask for may be refused: else a page would hold the first by racing with few.
SLOWER, REFUSED = 0.2, 0.05


class CrowdLog(Log):
    """Memory of page and worker at moments, and by how many seconds the crowd itself was late."""

    def __init__(self) -> None:
        super().__init__(CROSSED, OVERTAKEN, LOST, SHUT_OUT)
        self.rss: list[tuple[float, int, int]] = []
        self.late = 0.0

    def mark(self) -> tuple[int, Counter[str]]:
        """What has been noted so far."""
        return len(self.seconds.get(RACED, [])), self.counts.copy()

    def add(self, log: "CrowdLog", since: tuple[int, Counter[str]]) -> None:
        """Add the races and counts that `log` has noted since then."""
        races, counts = since
        self.seconds.setdefault(RACED, []).extend(log.seconds.get(RACED, [])[races:])
        self.counts += log.counts - counts


class Siege:
    """Hostile visitors who come and go: a quarter of a round without them, half of it with them,
    a quarter without. What else the machine does in that time befalls both alike. While they are
    away, as many honest visitors take their places: else a page would be slower beside them for
    there being more visitors.
    """

    def __init__(self, attackers: int, seconds: float) -> None:
        self.attackers, self._seconds = attackers, seconds
        self.calm, self.beside = CrowdLog(), CrowdLog()
        self.now: CrowdLog | None = None  # the side that a moment counts for

    async def run(
        self,
        log: CrowdLog,
        attack: Callable[[float], Awaitable[Any]],
        stand_in: Callable[[float], Awaitable[Any]],
    ) -> None:
        """Have `attack(end)` in every hostile half and `stand_in(end)` in between, which is called
        off then. What begins within `SETTLE` seconds of a change belongs to neither side.
        """
        rounds = max(1, round(self._seconds / ROUND))
        quarter = self._seconds / rounds / 4
        for _ in range(rounds):
            await self._calm(quarter, log, stand_in)
            attacking = asyncio.ensure_future(attack(time.monotonic() + 2 * quarter))
            await self._spend(2 * quarter, log, self.beside)
            await attacking
            await self._calm(quarter, log, stand_in)

    async def _calm(
        self, seconds: float, log: CrowdLog, stand_in: Callable[[float], Awaitable[Any]]
    ) -> None:
        standing_in = asyncio.ensure_future(stand_in(time.monotonic() + seconds))
        try:
            await self._spend(seconds, log, self.calm)
        finally:
            standing_in.cancel()
            await asyncio.gather(standing_in, return_exceptions=True)

    async def _spend(self, seconds: float, log: CrowdLog, side: CrowdLog) -> None:
        settling = min(SETTLE, seconds / 4)
        self.now = None
        await asyncio.sleep(settling)
        mark, self.now = log.mark(), side
        try:
            await asyncio.sleep(seconds - settling)
        finally:
            side.add(log, mark)


@lru_cache(maxsize=4096)
def expected(prompt: str) -> str:
    """The text that the fake model writes for a prompt, longer than any act asks for."""
    engine = FakeEngine()
    tokens = naive(engine, engine.tokenizer.encode(prompt, chat=True), Request(prompt, LONGEST))
    return bytes(token for token in tokens if token < 256).decode("ascii")


def crowd(
    visitors: int = 200,
    seconds: float = 3600.0,
    *,
    seed: int = 0,
    options: Sequence[str] = (),
) -> Result:
    """Have so many visitors at a time on the page for so long."""
    log = CrowdLog()
    figures = _crowded(log, visitors, seconds, seed, options)
    size = f"{visitors} visitors, {seconds:g} s, seed {seed}"
    return log.result("crowd", size, figures, [curve(log.rss)])


def beside_hostile(
    visitors: int = 40, seconds: float = 3600.0, *, seed: int = 0, share: float = 0.1
) -> Result:
    """Have a crowd on the page for so long, that share of it hostile for half of the time, in
    turns: do the others wait as long as beside honest ones?
    """
    log, siege = CrowdLog(), Siege(_of(visitors, share), seconds)
    honest, options = visitors - siege.attackers, ("--mcp", "--proxy", "127.0.0.1")
    figures = _crowded(log, honest, seconds, seed, options, siege)
    size = f"{visitors} visitors, {siege.attackers} of them hostile for half of {seconds:g} s"
    tried = sum(log.counts[counted(act)] > 0 for act in ATTACKS)
    kinds = at_least("kinds of attacks tried", tried, len(ATTACKS))
    figures = [*compared(siege.calm, siege.beside), kinds, *figures]
    return log.result("hostile", f"{size}, seed {seed}", figures, [curve(log.rss)])


def _of(visitors: int, share: float) -> int:
    """A share of the visitors: none of them, or at least one."""
    return max(1, round(visitors * share)) if share else 0


def compared(calm: CrowdLog, log: CrowdLog) -> list[Figure]:
    """How much longer races took beside hostile visitors, and how many more were refused. Most
    races end at once, and some wait or have the slow model. The median is in the gap between these
    two groups, where a few races more or less move it by several times: so it has no bar, and the
    mean has one.
    """
    both = [each.seconds.get(RACED, []) for each in (calm, log)]
    figures: list[Figure] = []
    for name, of, bar in (("mean", _mean, True), ("median", _median, False), ("p90", _p90, True)):
        usual, beside = map(of, both)
        figures += [
            noted(f"{RACED}, {name}, without hostile visitors", usual),
            noted(f"{RACED}, {name}, beside them", beside),
        ]
        if bar:
            figures.append(
                within(f"share by which the {name} is longer", beside / usual - 1, SLOWER)
            )
    usual, beside = _refusals(calm), _refusals(log)
    return [
        *figures,
        noted("races that ended, without hostile visitors", calm.counts["ended"]),
        noted("share of races refused, without hostile visitors", usual),
        noted("share of races refused, beside them", beside),
        within("share of races refused because of them", beside - usual, REFUSED),
    ]


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.inf


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else math.inf


def _p90(values: Sequence[float]) -> float:
    return sorted(values)[int(0.9 * (len(values) - 1))] if values else math.inf


def _refusals(log: CrowdLog) -> float:
    """The share of all races asked for that the page had no room for."""
    count = log.counts
    full = count["refused in a sentence"] + count["refused, HTTP 429"] + count["refused, HTTP 503"]
    return full / max(1, count["asked for"])


def _crowded(
    log: CrowdLog,
    visitors: int,
    seconds: float,
    seed: int,
    options: Sequence[str],
    siege: Siege | None = None,
) -> list[Figure]:
    """Play it into `log`, on a page started with these options: the figures of the page."""
    siege = siege or Siege(0, seconds)
    _allow_files(16 * visitors + CONNECTIONS * siege.attackers)
    with private_cache() as cache, Server("--fake", *options, cache=cache) as server:
        asyncio.run(_play(server, visitors, siege, seconds, seed, log))
        emptied = _emptied(server)
        log.wrong[BROKEN] += server.broken
    return [
        *log.longest(RACE),
        noted("longest time that the crowd itself was late, s", log.late),
        at_least("races that came to their end", log.counts["ended"], 1),
        *_memory(log.rss),
        *emptied,
    ]


def _allow_files(count: int) -> None:
    """Let this process and the server open as many sockets as the crowd needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        limit = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


#: A visitor's life at an address: the name, the dice, the moment to leave at, the log, and the
#: seconds to think at most.
Visit = Callable[[str, str, random.Random, float, CrowdLog, float], Awaitable[None]]


async def _play(
    server: Server, visitors: int, siege: Siege, seconds: float, seed: int, log: CrowdLog
) -> None:
    end = time.monotonic() + seconds
    numbers = itertools.count()
    watching = asyncio.create_task(_watch(server, log, seconds, siege))
    asking = asyncio.create_task(_agents(server, log, seconds, siege.attackers))
    # Think times such that a few more races are asked for than the machine can run.
    pause = min(30.0, seconds / 10)

    async def slot(visit: Visit, kind: str, chance: random.Random, end: float) -> None:
        await asyncio.sleep(chance.uniform(0, min(pause, seconds / 4)))
        while time.monotonic() < end:
            name = f"{kind} {next(numbers)}"
            try:
                await visit(server.address, name, chance, end, log, pause)
            except Exception as error:
                log.flaw(LOST, f"{name}: {error!r}")
                await asyncio.sleep(1)

    async def come(visit: Visit, kind: str, until: float) -> None:
        own = random.Random(f"{kind} {seed}")
        await asyncio.gather(*(slot(visit, kind, own, until) for _ in range(siege.attackers)))

    others = random.Random(seed)
    attacks, stand_ins = partial(come, attack, "hostile visitor"), partial(come, _visit, "stand-in")
    besieging = asyncio.create_task(siege.run(log, attacks, stand_ins))
    await asyncio.gather(*(slot(_visit, "visitor", others, end) for _ in range(visitors)))
    tasks = (watching, asking, besieging)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _agents(server: Server, log: CrowdLog, seconds: float, attackers: int) -> None:
    """An agent comes now and then, beside attackers alone: else the page may have no tools."""
    while attackers:
        log.counts["agents who came"] += 1
        if not await let_in(server.address):
            log.flaw(SHUT_OUT, f"agent {log.counts['agents who came']}")
        await asyncio.sleep(min(LOOK, seconds / 20))


async def _watch(server: Server, log: CrowdLog, seconds: float, siege: Siege) -> None:
    """Look at memory while the crowd is alone: what attackers hold is there as long as they are."""
    begun = time.monotonic()
    while True:
        if not siege.attackers or siege.now is siege.calm:
            log.rss.append((time.monotonic() - begun, *server.rss()))
        planned = time.monotonic() + min(LOOK, seconds / 20)
        await asyncio.sleep(planned - time.monotonic())
        log.late = max(log.late, time.monotonic() - planned)


async def _visit(
    address: str, name: str, chance: random.Random, end: float, log: CrowdLog, pause: float
) -> None:
    """One visitor's life."""
    log.counts["visitors"] += 1
    async with Client(address, place=place_of(name)) as client:
        for number in range(chance.randint(1, 4)):
            if time.monotonic() > end:
                return
            act = chance.choices(_ACTS, _WEIGHTS)[0]
            prompt = f"{name}, race {number}"
            try:
                await asyncio.wait_for(act(client, prompt, chance, log), RACE)
            except TimeoutError:
                log.flaw(LOST, f"{prompt}: {act.__name__[1:]} did not end in {RACE:g} s")
            except RefusedError as refusal:
                _refused(refusal, prompt, log)
            except httpx.HTTPError as error:
                log.flaw(LOST, f"{prompt}: {act.__name__[1:]}: {error!r}")
            await asyncio.sleep(chance.uniform(0, pause))
        if chance.random() < 0.1 and log.counts["deaf now"] < DEAF:
            await _deaf(client, f"{name}, unread", log, min(DEAF_SECONDS, pause))


def _refused(refusal: RefusedError, prompt: str, log: CrowdLog) -> None:
    log.counts[f"refused, HTTP {refusal.status}"] += 1
    if refusal.status >= 500 and refusal.status != 503:
        log.flaw(BROKEN, f"{prompt}: {refusal}")


def _judge(view: View, prompt: str, log: CrowdLog) -> None:
    """Is what is shown this prompt's?"""
    right = expected(prompt)
    for column in view.get("columns", ()):
        text = text_of(column)
        if not right.startswith(text):
            log.flaw(CROSSED, f"{prompt}: {column['title']} wrote {text!r} instead of {right!r}")
        if column["state"] == "failed":
            log.flaw(BROKEN, f"{prompt}: {column['title']} failed: {column['message']}")


async def _follow(
    client: Client,
    prompt: str,
    log: CrowdLog,
    what: str,
    until_seen: Callable[[View], bool] = lambda _: False,
    /,
    **fields: Any,
) -> View:
    """Watch a race to its end, or until something is seen: its last view."""
    begun, ahead, view = time.monotonic(), math.inf, View()
    log.counts["asked for"] += 1
    async for view in client.race(what, **fields):
        if "alert" in view:
            log.counts["refused in a sentence"] += 1
            return view
        _judge(view, prompt, log)
        found = _AHEAD.match(view["status"])
        now = int(found[1].replace("One", "1")) if found else 0
        if now > ahead:
            log.flaw(OVERTAKEN, f"{prompt}: {now} races ahead after {ahead}")
        ahead = now
        if until_seen(view):
            return view
    if view.get("phase") != "ended":
        log.flaw(LOST, f"{prompt}: the last view is {view.get('phase')}")
    log.counts["ended"] += 1
    log.took(RACED, time.monotonic() - begun)
    return view


def _form(prompt: str, chance: random.Random) -> dict[str, Any]:
    tokens, model = chance.randint(4, 40), chance.choice([FAKE, FAKE, FAKE, FAKE_SLOW])
    return form(prompt, min(tokens, 12) if model == FAKE_SLOW else tokens, *LINEUP, model=model)


async def _race(client: Client, prompt: str, chance: random.Random, log: CrowdLog) -> None:
    await _follow(client, prompt, log, "ask.submit", **_form(prompt, chance))


async def _go_on(client: Client, prompt: str, chance: random.Random, log: CrowdLog) -> None:
    first = await _follow(client, prompt, log, "ask.submit", **_form(prompt, chance))
    if "alert" not in first:
        await _follow(client, prompt, log, "ask.play", max_new_tokens=chance.randint(1, 40))


async def _halt(client: Client, prompt: str, chance: random.Random, log: CrowdLog) -> None:
    """Stop at a random moment, waiting in line or decoding."""
    stopping = asyncio.create_task(_later(chance.uniform(0, 3), client.stop))
    try:
        await _follow(client, prompt, log, "ask.submit", **_form(prompt, chance))
    finally:
        await stopping
    log.counts["stopped"] += 1


async def _replace(client: Client, prompt: str, chance: random.Random, log: CrowdLog) -> None:
    """A second run while the first is under way: only the second's text comes in the end."""
    await client.call("ask.submit", **_form(f"{prompt}, replaced", chance))
    await asyncio.sleep(chance.uniform(0, 0.5))
    await _follow(client, prompt, log, "ask.submit", **_form(prompt, chance))
    log.counts["replaced"] += 1


async def _abandon(client: Client, prompt: str, chance: random.Random, log: CrowdLog) -> None:
    """Leave in the middle, by closing the tab (the caller does)."""
    log.counts["abandoned"] += 1
    await _follow(client, prompt, log, "ask.submit", racing, **_form(prompt, chance))


async def _edit(client: Client, prompt: str, chance: random.Random, log: CrowdLog) -> None:
    """The grammar editor, sound and not."""
    text = chance.choice(['start: "a"', 'start: "a" ((', "start: start", "\x00", "x" * 5000])
    said, _ = await client.call("own.change", own=text, sample=prompt)
    if not isinstance(said, str) or not said:
        log.flaw(BROKEN, f"{prompt}: the editor says {said!r:.200} of {text!r:.60}")
    log.counts["looked at a grammar"] += 1


GARBAGE: tuple[Any, ...] = (
    None,
    True,
    -1,
    1e308,
    "",
    "\ud83d",
    "x" * 70_000,
    [],
    {},
    [[[]]],
    "../..",
)


async def _garbage(client: Client, prompt: str, chance: random.Random, log: CrowdLog) -> None:
    """A form with one field of garbage, or a request that is none."""
    log.counts["garbage"] += 1
    action = client.page.actions["ask.submit"]
    data = client.page.data(action, _form(prompt, chance))
    data[chance.randrange(len(data))] = chance.choice(GARBAGE)
    body = client.body(action, data)
    if chance.random() < 0.3:
        body[chance.choice(list(body))] = chance.choice(GARBAGE)
    [answer] = await client.post(body)
    async for _ in client.shown(answer):
        pass


async def _deaf(client: Client, prompt: str, log: CrowdLog, seconds: float) -> None:
    """Run, and never read what comes of it."""
    log.counts["deaf"] += 1
    log.counts["deaf now"] += 1
    try:
        with contextlib.suppress(RefusedError):
            await client.call("ask.submit", **form(prompt, 40, *LINEUP))
            async with client.http.stream("GET", "/derby/stream"):
                await asyncio.sleep(seconds)
    finally:
        log.counts["deaf now"] -= 1


async def _later(seconds: float, act: Callable[[], Awaitable[None]]) -> None:
    await asyncio.sleep(seconds)
    with contextlib.suppress(RefusedError, httpx.HTTPError):
        await act()


Act = Callable[[Client, str, random.Random, CrowdLog], Awaitable[None]]
_ACTS: tuple[Act, ...] = (_race, _go_on, _halt, _replace, _abandon, _edit, _garbage)
_WEIGHTS = (40, 15, 15, 8, 10, 4, 8)


def _memory(looks: Sequence[tuple[float, int, int]]) -> list[Figure]:
    """How far memory grew after the warm-up: medians of tenths, the first against the largest."""
    seconds = looks[-1][0] if looks else 0.0
    long_enough = seconds >= 2 * WARM_UP
    after = [look for look in looks if look[0] >= (WARM_UP if long_enough else seconds / 3)]
    size = max(1, len(after) // 10)
    figures = []
    for place, name in ((1, "page"), (2, "worker")):
        values = [look[place] for look in after]
        medians = [statistics.median(values[i : i + size]) for i in range(0, len(values), size)]
        if not medians or not medians[0]:
            continue
        growth = max(medians) / medians[0] - 1
        figures.append(noted(f"memory of the {name} at the end, MB", medians[-1] / 1e6))
        what = f"growth of the {name}'s memory after the warm-up"
        figures.append(at_most(what, growth, GROWTH) if long_enough else noted(what, growth))
    return figures


def _emptied(server: Server) -> list[Figure]:
    """Once all have left: does a new visitor race at once, and is the line empty?"""

    async def one() -> View:
        async with Client(server.address) as client:
            return await asyncio.wait_for(client.last(**form("the last one", 8)), RACE)

    def alone() -> bool:
        return asyncio.run(one()).get("phase") == "ended"

    try:
        waited = until(alone, RACE)
    except TimeoutError:
        waited = math.inf
    threads, files, children = server.held()
    return [
        within("seconds until a last visitor's race has ended", waited, 60),
        noted("threads of the page at the end", threads),
        noted("file descriptors of the page at the end", files),
        at_most("processes below the page at the end", children, PROCESSES),
    ]
