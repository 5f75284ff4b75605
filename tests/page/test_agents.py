"""The page's tools as an agent uses them: the protocol's own client against the app."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from typing import Any

import anyio
import httpx
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel.server import request_ctx
from mcp.server.session import ServerSession
from mcp.shared.context import RequestContext
from mcp.types import RequestParams
from recordings import race_of

from backend.errors import DerbyError
from backend.limits import PRIVATE
from backend.records.file import as_bytes
from backend.records.place import PROGRAM, versions
from backend.web.api import Report
from page.agents import MOST_CALLS, Agents

Scene = Callable[[ClientSession], Awaitable[Any]]


def asked(address: str, scene: Scene) -> Any:
    async def whole() -> Any:
        async with (
            streamable_http_client(f"{address.rstrip('/')}/mcp") as (read, write, _),
            ClientSession(read, write) as session,
        ):
            began = await session.initialize()
            # It told the version of the protocol's package.
            assert began.serverInfo.version == dict(versions())[PROGRAM]
            return await scene(session)

    return asyncio.run(whole())


def said(result: Any) -> str:
    return "".join(part.text for part in result.content)


def test_an_agent_finds_the_tools_races_and_reads_the_result(address: str) -> None:
    progress: list[str] = []

    async def told(_: float, __: float | None, message: str | None) -> None:
        progress.append(message or "")

    async def scene(session: ClientSession) -> Any:
        tools = (await session.list_tools()).tools
        assert {tool.name for tool in tools} == {"race", "benchmark", "explain"}
        assert all(tool.description for tool in tools)
        arguments = {"prompt": "Who?", "columns": ["kv", "lookup"], "max_new_tokens": 24}
        return await session.call_tool("race", arguments, progress_callback=told)

    result = asked(address, scene)
    assert not result.isError
    assert "Prompt lookup (lookup)" in said(result)
    assert "identical to KV reuse (24 tokens)" in said(result)
    assert progress[-1] == "ended"


def test_a_benchmark_names_the_best_setting(address: str) -> None:
    async def scene(session: ClientSession) -> Any:
        arguments = {"prompts": ["One", "Two", "Three", "Four"], "max_new_tokens": 8}
        return await session.call_tool("benchmark", arguments)

    assert "Best here: " in said(asked(address, scene))


def test_a_recorded_race_is_explained_and_without_one_the_terms(address: str) -> None:
    async def scene(session: ClientSession) -> Any:
        arguments = {"race": as_bytes(race_of("kv lookup")).decode()}
        return [
            await session.call_tool("explain", arguments),
            await session.call_tool("explain", {"race": "nonsense"}),
            await session.call_tool("explain", {}),
        ]

    told, wrong, terms = asked(address, scene)
    assert "Prompt lookup (lookup)" in said(told)
    assert wrong.isError
    assert "race" in said(wrong)
    assert "- speculative (Speculative)" in said(terms)
    assert "TTFT" in said(terms)


def test_what_is_refused_is_an_error_in_its_sentence(address: str) -> None:
    async def scene(session: ClientSession) -> Any:
        return [
            await session.call_tool("race", {"prompt": " "}),
            await session.call_tool("race", {"prompt": "a", "columns": ["pears"]}),
            await session.call_tool("benchmark", {"prompts": ["a"], "max_new_tokens": 9000}),
        ]

    results = asked(address, scene)
    sentences = ("The prompt is empty", "no column 'pears'", "max new tokens is 9000")
    for result, sentence in zip(results, sentences, strict=True):
        assert result.isError
        assert sentence in said(result)


def test_two_agents_do_not_end_one_anothers_races(address: str) -> None:
    """Gradio's own server for agents has one session for all of them: as one visitor, the second
    one's race would end the first one's.
    """

    async def scene(session: ClientSession) -> Any:
        async with (
            streamable_http_client(f"{address.rstrip('/')}/mcp") as (read, write, _),
            ClientSession(read, write) as other,
        ):
            await other.initialize()
            arguments = {"prompt": "Who?", "columns": ["kv"], "max_new_tokens": 2000}
            return await asyncio.gather(
                session.call_tool("race", arguments), other.call_tool("race", arguments)
            )

    for result in asked(address, scene):
        assert "Stopped early" not in said(result)


def message(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


LONG_RACE = message(
    "tools/call",
    name="race",
    arguments={"prompt": "a", "columns": ["kv"], "max_new_tokens": 4000, "model": "fake-slow"},
    _meta={"progressToken": 1},
)


def client(address: str, **headers: str) -> httpx.Client:
    accepted = {"Accept": "application/json, text/event-stream"}
    return httpx.Client(base_url=address, headers={**accepted, **headers}, timeout=60)


def test_a_foreign_page_may_not_call(address: str) -> None:
    for header in (
        {"Origin": "https://example.org"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        with client(address, **header) as http:
            assert http.post("/mcp", json=message("tools/list")).status_code == 403


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("[" * 3000, "not JSON"),
        ("[" * 100 + "]" * 100, "must be an object"),
        (
            json.dumps(message("tools/list", deep=[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]])),
            "nested more",
        ),
        ('{"jsonrpc": "2.0", "id": 1}', "'method' is missing"),
        ('{"jsonrpc": "1.0", "id": 1, "method": "tools/list"}', "'1.0'; choose from 2.0"),
    ],
)
def test_a_body_that_is_no_call_is_refused_in_a_sentence(
    address: str, body: str, sentence: str
) -> None:
    """Three thousand brackets were a RecursionError in the protocol's package, whose traceback was
    drawn in the event loop: forty of them stopped the page for a second, once for 27.
    """
    with client(address, **{"Content-Type": "application/json"}) as http:
        answer = http.post("/mcp", content=body)
    assert answer.status_code == 400
    assert sentence in answer.json()["detail"]


def test_a_call_has_the_size_that_a_request_may_have(address: str) -> None:
    with client(address) as http:
        answer = http.post("/mcp", json=message("tools/list", long="x" * (PRIVATE.request_bytes)))
    assert answer.status_code == 413
    assert answer.json()["detail"].startswith(f"A request may have {PRIVATE.request_bytes:,} bytes")


def test_arguments_are_refused_in_a_sentence_that_names_no_library(address: str) -> None:
    async def scene(session: ClientSession) -> Any:
        return [
            await session.call_tool("race", {"prompt": "a", "columns": 3}),
            await session.call_tool("race", {"prompt": "a", "max_new_tokens": "many"}),
            await session.call_tool("benchmark", {}),
            await session.call_tool("explain", {"race": 3}),
            await session.call_tool("pears", {}),
        ]

    for result in asked(address, scene):
        assert result.isError
        assert "pydantic" not in said(result)
        assert "\n" not in said(result)


def test_who_begins_and_begins_shuts_nobody_out(address: str) -> None:
    """A hundred sessions once took all there were, for half an hour. There are none to take."""
    hello = message(
        "initialize",
        protocolVersion="2025-06-18",
        capabilities={},
        clientInfo={"name": "nobody", "version": "1"},
    )
    with client(address) as http:
        answers = [http.post("/mcp", json=hello) for _ in range(120)]
        assert http.get("/mcp").status_code == 405
    assert {answer.status_code for answer in answers} == {200}
    assert not any("mcp-session-id" in answer.headers for answer in answers)


def test_a_call_whose_agent_hangs_up_keeps_nobody_waiting(address: str) -> None:
    """Such a race once kept the next visitor waiting until it ended, and 32 of them filled the
    line: nobody noticed that their agents had gone.
    """
    for _ in range(3):
        with client(address) as http, http.stream("POST", "/mcp", json=LONG_RACE) as answer:
            next(answer.iter_lines())

    async def scene(session: ClientSession) -> Any:
        arguments = {"prompt": "Who?", "columns": ["kv"], "max_new_tokens": 8}
        return await asyncio.wait_for(session.call_tool("race", arguments), 30)

    assert "Stopped early" not in said(asked(address, scene))


@pytest.mark.parametrize("end", ["ours", "theirs"])
def test_an_agent_that_hangs_up_while_it_is_told_is_no_error_of_ours(end: str) -> None:
    """On a busy machine, a progress message to an agent that had just gone was logged with a
    traceback, twice in an hour of attacks.
    """

    async def reports() -> AsyncIterator[Report]:
        yield {"status": "1 token written"}

    async def told() -> None:
        agents = Agents(None, None, 1 << 20)  # type: ignore[arg-type]
        asked, incoming = anyio.create_memory_object_stream[Any](1)
        outgoing, theirs = anyio.create_memory_object_stream[Any](1)
        options = agents._server.create_initialization_options()
        async with (
            asked,
            theirs,
            ServerSession(incoming, outgoing, options, stateless=True) as session,
        ):
            await (outgoing if end == "ours" else theirs).aclose()
            meta = RequestParams.Meta(progressToken=1)
            request_ctx.set(RequestContext(1, meta, session, None))
            with pytest.raises(DerbyError, match="hung up"):
                await agents._last(reports())

    asyncio.run(told())


def test_one_address_has_so_many_calls_open_whatever_it_calls_itself(address: str) -> None:
    """Whoever called from the page's own machine, or through a proxy on it that nobody had named,
    was believed to be at any address that it told.
    """
    with ExitStack() as held:
        for n in range(MOST_CALLS):
            http = held.enter_context(client(address, **{"X-Forwarded-For": f"192.0.2.{n}"}))
            answer = held.enter_context(http.stream("POST", "/mcp", json=LONG_RACE))
            assert answer.status_code == 200
        with client(address, **{"X-Forwarded-For": "192.0.2.99"}) as http:
            refused = http.post("/mcp", json=message("tools/list"))
    assert refused.status_code == 429
    assert f"{MOST_CALLS} open calls" in refused.json()["detail"]
