"""The page's tools as an agent uses them: the protocol's own client against the app."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from recordings import race_of

from backend.records.link import encode

Scene = Callable[[ClientSession], Awaitable[Any]]


def asked(address: str, scene: Scene) -> Any:
    async def whole() -> Any:
        async with (
            streamable_http_client(f"{address.rstrip('/')}/mcp") as (read, write, _),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
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
        arguments = {"race": encode(race_of("kv lookup"))}
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


def test_a_foreign_page_may_not_call(address: str) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    headers = {"Origin": "https://example.org", "Accept": "application/json, text/event-stream"}
    answer = httpx.post(f"{address.rstrip('/')}/mcp", json=body, headers=headers)
    assert answer.status_code == 403
