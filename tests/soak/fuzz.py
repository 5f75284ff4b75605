"""Forms, prompts, grammars, snapshots and requests that nobody would send, by the thousand.

Each ends in a race or in one sentence. Hypothesis makes them from a seed that the result names:
the same seed makes the same ones again.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from soak.client import Client, RefusedError, View
from soak.forms import ended, form
from soak.report import BROKEN, Log, Result, at_least
from soak.server import Server, private_cache

#: Seconds after which a race is stopped, and after which it must have ended.
STOPPED, ENDED = 2.0, 60.0

#: What a person cannot do anything with.
INTERNAL = "An error in this program"


def _pieces(words: str, *others: str) -> tuple[str, ...]:
    return (*words.split(), *others)


#: What texts of each language are made of.
PIECES: Mapping[str, tuple[str, ...]] = {
    "prompt": _pieces(
        'word {{ }} {{a}} {{#user}} {{/user}} {{each " | \\ é \u202e \U0001f469\u200d\U0001f4bb',
        '{{gen "a"}}',
        '{{gen "a" max=4}}',
        '{{select "b" "x|y"}}',
        "\n",
        "\0",
    ),
    "lark": _pieces(
        'start rule TERM : | ( ) [ ] * + ? ~3 ~0..9 "a" /b+/ /(/ // -> @ \\ é %ignore %regex',
        "%import common.INT",
        "%json {}",
        "\n",
        " ",
    ),
    "gbnf": _pieces(
        'root ::= rule | ( ) * + ? {2} {0} {1,} "a" "" [a-z] [^ ] . # \\x41 é', "\n", " "
    ),
    "regex": _pieces(r"a b . * + ? {2} {0,} {,3} ( ) (?: (?= (?i) [ ] ^ $ | \d \p{L} \b \ é"),
    "json": _pieces(
        '{ } [ ] : , 1 -1 1e999 true null "type" "object" "string" "properties" "a" "$ref" "#" '
        '"#/$defs/a" "$defs" "enum" "pattern" "^(" "minLength" "required" "anyOf" "not" "format" '
        '"date"'
    ),
    "lineup": _pieces(
        "kv lookup speculative lookahead stateless grammar : , = k n auto draft fake-draft cache "
        "grammar=json grammar=own @ fake / 0 9999999 -1 ../.. é",
        "\n",
        " ",
    ),
}


def written(kind: str) -> "st.SearchStrategy[str]":
    """Texts made of a language's own pieces, and any text at all."""
    pieces = st.lists(st.sampled_from(PIECES[kind]), max_size=24).map("".join)
    return st.one_of(pieces, pieces, st.text(st.characters(), max_size=200))


NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, 1, -1, 2, 7, 64, 4096, 8192, 8193, 2**31, 2**63]),
    st.floats(),
)
PLAUSIBLE = st.sampled_from([True, False, 0, 1, 0.5, "", "0", "kv", "fake", "fp32", "CPU"])
JSON = st.recursive(
    st.one_of(st.none(), PLAUSIBLE, PLAUSIBLE, NUMBERS, st.text(st.characters(), max_size=40)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


NEITHER = "examples without a race or a sentence"

Trial = Callable[["Bench", Any], Coroutine[None, None, str]]


@dataclass
class Bench:
    """One kind's client, and what it needs to try an example."""

    client: Client
    cache: Path
    snapshot: str = ""
    original: bytes = b""
    count: int = 0


def fuzz(count: int = 10_000, *, seed: int = 0) -> Result:
    """Try so many examples, every kind a share of them, all kinds side by side."""
    log = Log(NEITHER)
    share = max(1, count // len(KINDS))
    with private_cache() as cache, Server("--fake", cache=cache) as server:
        threads = [
            threading.Thread(target=_kind, args=(name, share, seed, server, cache, log))
            for name in KINDS
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        log.wrong[BROKEN] += server.broken
    tried = at_least("examples tried", sum(log.counts.values()), share * len(KINDS))
    return log.result("fuzz", f"{count} examples, seed {seed}", [tried])


def _kind(name: str, count: int, seed: int, server: Server, cache: Path, log: Log) -> None:
    """Try `count` examples of a kind, in an event loop of this thread's own."""
    examples, trial = KINDS[name]

    async def every(found: list[Any]) -> None:
        async with Client(server.address) as client:
            bench = Bench(client, cache)
            for example in found:
                try:
                    what = await asyncio.wait_for(trial(bench, example), ENDED)
                except RefusedError as refusal:
                    what = f"HTTP {refusal.status}"
                    if refusal.status >= httpx.codes.INTERNAL_SERVER_ERROR:
                        log.flaw(NEITHER, f"{name}: {refusal} of {example!r:.300}")
                except Exception as error:
                    what = "neither"
                    log.flaw(NEITHER, f"{name}: {error!r:.300} of {example!r:.300}")
                log.counts[f"{name}: {what}"] += 1

    try:
        asyncio.run(every(_drawn(examples, count, seed)))
    except Exception as error:
        log.flaw(NEITHER, f"{name} ended early: {error!r}")


def _drawn(examples: "st.SearchStrategy[Any]", count: int, seed: int) -> list[Any]:
    """The first `count` examples that Hypothesis makes from a seed, repeated if there are fewer."""
    found: list[Any] = []

    @seeded(seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(examples)
    def draw(example: Any) -> None:
        found.append(example)

    draw()
    return (found * (count // len(found) + 1))[:count]


async def _raced(client: Client, answer: View) -> str:
    """Watch a race, stopping it if it is long: what became of it. Raises ValueError if that is
    neither a race nor one sentence.
    """
    stopping = asyncio.create_task(_stop_late(client))
    view = View()
    try:
        async for each in client.shown(answer):
            view = each
    finally:
        stopping.cancel()
    if "alert" in view:
        return _sentence(view["alert"])
    if not ended(view):
        raise ValueError(f"the last view is {str(view)[:200]}")
    said = [column["message"] for column in view["columns"] if column["state"] == "failed"]
    for message in said:
        _sentence(message)
    return "a race whose columns say why not" if said else "a race"


async def _stop_late(client: Client) -> None:
    await asyncio.sleep(STOPPED)
    await client.stop()


def _sentence(text: str) -> str:
    """Raises ValueError unless it is something that a person can act on."""
    if not text or INTERNAL in text or "Traceback" in text or len(text) > 2000:
        raise ValueError(f"no sentence: {text[:300]!r}")
    return "a sentence"


async def _form(bench: Bench, changes: Mapping[int, Any]) -> str:
    """A good form with some of its fields replaced."""
    action = bench.client.page.actions["ask.submit"]
    data = bench.client.page.data(action, form("A form", 4, "kv", "lookup"))
    for place, value in changes.items():
        data[place % len(data)] = value
    [answer] = await bench.client.post(bench.client.body(action, data))
    return await _raced(bench.client, answer)


async def _prompt(bench: Bench, example: tuple[str, str]) -> str:
    prompt, lineup = example
    [answer] = await bench.client.call("ask.submit", **form(prompt, 4, lineup or "kv"))
    return await _raced(bench.client, answer)


async def _grammar(bench: Bench, example: tuple[str, str, str]) -> str:
    """In the editor and in a race, in turn."""
    kind, text, sample = example
    bench.count += 1
    if bench.count % 2:
        asked = form("A grammar", 4, "grammar:grammar=own", kind=kind, own=text)
        [answer] = await bench.client.call("ask.submit", **asked)
        return await _raced(bench.client, answer)
    _sentence((await bench.client.call("own.change", kind=kind, own=text, sample=sample))[0])
    return "looked at"


async def _snapshot(bench: Bench, example: tuple[int, bytes, int]) -> str:
    """A saved column's file with some of its bytes replaced, cut or added to."""
    if not bench.snapshot:
        await bench.client.last(**form("To be saved", 8, "kv"))
        bench.snapshot = (await bench.client.call("save.click"))[1]
        bench.original = _file(bench).read_bytes()
    place, replaced, cut = example
    place %= len(bench.original)
    harmed = bench.original[:place] + replaced + bench.original[place + cut :]
    _file(bench).write_bytes(harmed)
    asked = {"snapshot": bench.snapshot, "max_new_tokens": 2}
    [answer] = await bench.client.call("load.click", **asked)
    return await _raced(bench.client, answer)


def _file(bench: Bench) -> Path:
    """The file of the bench's snapshot. Raises StopIteration if there is none."""
    found = bench.cache.rglob(f"*{bench.snapshot}*")
    return next(path for path in sorted(found) if path.is_file())


async def _request(bench: Bench, changes: Mapping[str, Any]) -> str:
    """A request that gradio itself may refuse; nothing of ours may break by it."""
    action = bench.client.page.actions["ask.submit"]
    body = bench.client.body(action, bench.client.page.data(action, form("A request", 2)))
    await bench.client.post({**body, **changes})
    return "accepted"


KINDS: dict[str, tuple["st.SearchStrategy[Any]", Trial]] = {
    "forms": (st.dictionaries(st.integers(0, 40), JSON, min_size=1, max_size=4), _form),
    "prompts": (st.tuples(written("prompt"), st.one_of(st.just("kv"), written("lineup"))), _prompt),
    "grammars": (
        st.sampled_from(["lark", "gbnf", "regex", "json"]).flatmap(
            lambda kind: st.tuples(st.just(kind), written(kind), st.text(max_size=20))
        ),
        _grammar,
    ),
    "snapshots": (
        st.tuples(st.integers(0, 2**20), st.binary(max_size=16), st.integers(0, 64)),
        _snapshot,
    ),
    "requests": (
        st.dictionaries(
            st.sampled_from(["data", "fn_index", "session_hash", "trigger_id", "event_data"]),
            JSON,
            min_size=1,
        ),
        _request,
    ),
}
