"""Programs and agents get what the page gives: the app as its users start it, and the official
clients.
"""

import time
from typing import Any

import anyio
import pytest
from gradio_client import Client
from mcp import ClientSession, types
from mcp.client.streamable_http import streamable_http_client

LOOP = {"prompt": "Why is it so, why is it", "lineup": "kv\nlookup", "model": "fake-loop"}

#: To which the fake model writes for minutes.
ENDLESS = {"prompt": "Long one 7", "lineup": "kv", "max_new_tokens": 8000, "model": "fake-slow"}


@pytest.fixture(scope="module")
def page(address: str) -> Client:
    return Client(address, verbose=False)


def race(page: Client, **asked: Any) -> dict[str, Any]:
    return page.predict(api_name="/race", **asked)


def test_a_race_is_reported_whole(page: Client) -> None:
    report = race(page, **LOOP, max_new_tokens=40)
    kv, lookup = report["columns"]
    assert (kv["verdict"], kv["speedup"]) == ("baseline", 1.0)
    assert lookup["text"] == kv["text"]
    assert (report["texts"], lookup["compared"]) == ("same", "same text")
    assert lookup["figures"]["tokens"] == 40
    assert report["headline"]


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"max_new_tokens": 99_999}, "99999"),
        ({"lineup": "kv\nwarp"}, "Line 2"),
        ({"temperature": "warm"}, "warm"),
        ({"model": "/etc"}, "/etc"),
        ({"warp": 1}, "warp"),
    ],
)
def test_what_cannot_be_raced_is_a_sentence(
    page: Client, asked: dict[str, Any], named: str
) -> None:
    with pytest.raises(Exception, match=named):
        race(page, **({"prompt": "Hi"} | asked))


def test_a_cancelled_call_frees_the_machine(page: Client) -> None:
    job = page.submit(api_name="/race", **ENDLESS)
    time.sleep(1)  # the race runs, or will be cancelled before it does
    job.cancel()
    begun = time.monotonic()
    race(page, **LOOP, max_new_tokens=8)
    assert time.monotonic() - begun < 10


def test_grammars_and_settings_are_told(page: Client) -> None:
    fit = page.predict("regex", "[ab]+", "abc", api_name="/grammar_check")
    assert fit == {"accepted_characters": 2, "may_end_here": True}
    with pytest.raises(Exception, match="nothing"):
        page.predict("lark", "start: nothing", "", api_name="/grammar_check")
    names = {name for name, _, _ in page.predict(api_name="/settings")}
    assert {"kv", "speculative", "lookahead"} <= names


def test_an_agent_s_cancelled_call_ends_its_race_and_the_next_one_runs(address: str) -> None:
    """The cancellation was answered, the race ran on, and the session's next call waited."""

    async def talk() -> None:
        place = f"{address.rstrip('/')}/gradio_api/mcp/"
        async with (
            streamable_http_client(place) as (read, write, _),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            tools = {tool.name: tool for tool in (await session.list_tools()).tools}
            assert {"race", "settings", "grammar_check"} == set(tools)
            assert "thinking" in tools["race"].inputSchema["properties"]

            async def endless() -> None:
                with pytest.raises(Exception, match="cancelled"):
                    await session.call_tool("race", ENDLESS)

            async with anyio.create_task_group() as calls:
                calls.start_soon(endless)
                await anyio.sleep(1)
                number = session._request_id - 1
                params = types.CancelledNotificationParams(requestId=number)
                cancelled = types.CancelledNotification(
                    method="notifications/cancelled", params=params
                )
                await session.send_notification(types.ClientNotification(cancelled))
                begun = time.monotonic()
                answer = await session.call_tool("race", LOOP | {"max_new_tokens": 8})
                assert not answer.isError
                assert time.monotonic() - begun < 10
            answer = await session.call_tool("race", {"prompt": "Hi", "warp": 3})
            assert answer.isError

    anyio.run(talk)
