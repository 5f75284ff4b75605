"""Programs and agents get what the page gives, by the official clients and the app as its users
start it: a race's report, a sentence for what cannot be raced, and a machine that is free again
when a caller cancels or hangs up.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
from gradio_client import Client
from gradio_client.utils import Status
from mcp import ClientSession, types
from mcp.client.streamable_http import streamable_http_client
from race_runs import PATIENCE, until

from backend.form import Form

LOOP: dict[str, Any] = {
    "prompt": "Why is it so, why is it",
    "lineup": "kv\nlookup",
    "model": "fake-loop",
}

RUNNING = (Status.PROCESSING, Status.ITERATING)

#: To which the fake model writes for minutes.
ENDLESS: dict[str, Any] = {
    "prompt": "Long one 7",
    "lineup": "kv",
    "max_new_tokens": 8000,
    "model": "fake-slow",
}


@pytest.fixture(scope="module")
def page(address: str) -> Client:
    return Client(address, verbose=False)


@asynccontextmanager
async def agent(base: str) -> AsyncIterator[ClientSession]:
    """The official client; it leaves without a word."""
    async with (
        streamable_http_client(f"{base}mcp/", terminate_on_close=False) as (read, write, _),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        yield session


def race(page: Client, **form: Any) -> dict[str, Any]:
    return page.predict(api_name="/race", **form)


def test_a_race_is_reported_whole(page: Client) -> None:
    report = race(page, **LOOP, max_new_tokens=40)
    kv, lookup = report["columns"]
    assert (kv["verdict"], kv["speedup"]) == ("baseline", 1.0)
    assert lookup["text"] == kv["text"]
    assert (report["texts"], lookup["compared"]) == ("same", "same text as KV reuse")
    assert lookup["figures"]["tokens"] == 40
    assert report["headline"]


@pytest.mark.parametrize(
    ("form", "named"),
    [
        ({"lineup": "kv\nwarp"}, "Line 2"),
        ({"temperature": "warm"}, "warm"),
        ({"warp": 1}, "warp"),
    ],
)
def test_what_cannot_be_raced_is_a_sentence(page: Client, form: dict[str, Any], named: str) -> None:
    with pytest.raises(Exception, match=named):
        race(page, **({"prompt": "Hi"} | form))


def test_a_cancelled_call_frees_the_machine(page: Client) -> None:
    job = page.submit(api_name="/race", **ENDLESS)
    until(lambda: job.status().code in RUNNING)
    job.cancel()
    page.submit(api_name="/race", **LOOP, max_new_tokens=8).result(timeout=PATIENCE)


#: Of one who hangs up after a second, while the server listens as long as it needs.
IMPATIENT = httpx.Timeout(PATIENCE, read=1)


def hang_up_directly(base: str) -> None:
    data = list(Form(**ENDLESS).model_dump().values())
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{base}run/race", json={"data": data}, timeout=IMPATIENT)


def hang_up_in_the_queue(base: str) -> None:
    event = httpx.post(f"{base}call/v2/race", json=ENDLESS, timeout=PATIENCE).json()["event_id"]
    with pytest.raises(httpx.ReadTimeout):
        httpx.get(f"{base}call/v2/race/{event}", timeout=IMPATIENT)


def hang_up_as_an_agent(base: str) -> None:
    async def talk() -> None:
        async with agent(base) as session:
            with anyio.move_on_after(1):
                await session.call_tool("race", ENDLESS)

    anyio.run(talk)


@pytest.mark.parametrize("hang_up", [hang_up_directly, hang_up_in_the_queue, hang_up_as_an_agent])
def test_a_caller_who_hangs_up_frees_the_machine(
    address: str, page: Client, hang_up: Callable[[str], None]
) -> None:
    hang_up(f"{address}gradio_api/")
    page.submit(api_name="/race", **LOOP, max_new_tokens=8).result(timeout=PATIENCE)


def test_grammars_are_checked_and_settings_listed(page: Client) -> None:
    fit = page.predict("regex", "[ab]+", "abc", api_name="/grammar_check")
    assert fit == {"accepted_characters": 2, "may_end_here": True}
    with pytest.raises(Exception, match="nothing"):
        page.predict("lark", "start: nothing", "", api_name="/grammar_check")
    names = {name for name, _, _ in page.predict(api_name="/settings")}
    assert {"kv", "speculative", "lookahead"} <= names


def test_an_agent_s_cancelled_call_ends_its_race_and_the_next_one_runs(address: str) -> None:
    async def talk() -> None:
        async with agent(f"{address}gradio_api/") as session:
            tools = {tool.name: tool for tool in (await session.list_tools()).tools}
            assert {"race", "settings", "grammar_check"} == set(tools)
            schema = tools["race"].inputSchema
            assert set(schema["properties"]) == set(Form.model_fields)
            assert all(schema["properties"][name]["description"] for name in schema["properties"])

            ended, number = anyio.Event(), session._request_id

            async def endless() -> None:
                with pytest.raises(Exception, match="cancelled"):
                    await session.call_tool("race", ENDLESS)
                ended.set()

            async with anyio.create_task_group() as calls:
                calls.start_soon(endless)
                params = types.CancelledNotificationParams(requestId=number)
                cancelled = types.CancelledNotification(
                    method="notifications/cancelled", params=params
                )
                while not ended.is_set():  # one that arrives before the call is ignored
                    await session.send_notification(types.ClientNotification(cancelled))
                    with anyio.move_on_after(0.5):
                        await ended.wait()
                with anyio.fail_after(PATIENCE):
                    answer = await session.call_tool("race", LOOP | {"max_new_tokens": 8})
                assert not answer.isError
            assert (await session.call_tool("race", {"prompt": "Hi", "warp": 3})).isError

    anyio.run(talk)


def test_no_race_of_the_page_passes_its_line(address: str) -> None:
    with httpx.Client(base_url=address, timeout=60) as client:
        functions = client.get("config").json()["dependencies"]
        queued = [f for f in functions if f["backend_fn"] and f["queue"]]
        assert queued
        for function in queued:
            call = {"data": [], "fn_index": function["id"], "session_hash": "a"}
            assert client.post("gradio_api/run/predict", json=call).status_code == 404
