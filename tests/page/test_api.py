"""Programs and agents get what the page gives, by the official clients and the app as its users
start it: a race's report, a sentence for what cannot be raced, and a machine that is free again
when a caller cancels or hangs up.
"""

import ast
import json
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
async def agent(address: str) -> AsyncIterator[ClientSession]:
    """The official client; it leaves without a word."""
    place = f"{address.rstrip('/')}/gradio_api/mcp/"
    async with (
        streamable_http_client(place, terminate_on_close=False) as (read, write, _),
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
        ({"max_new_tokens": 99_999}, "99999"),
        ({"lineup": "kv\nwarp"}, "Line 2"),
        ({"temperature": "warm"}, "warm"),
        ({"model": "/etc"}, "/etc"),
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


def waiting(seconds: float) -> httpx.Timeout:
    """For an answer so long, and for the server to listen as long as it needs."""
    return httpx.Timeout(PATIENCE, read=seconds)


def ask_directly(address: str, form: dict[str, Any], seconds: float) -> dict[str, Any] | None:
    """The report of a race, or None where it took longer and its caller hung up."""
    base = f"{address.rstrip('/')}/gradio_api/"
    info = httpx.get(f"{base}info", timeout=waiting(PATIENCE))
    parameters = info.json()["named_endpoints"]["/race"]["parameters"]
    data = [form.get(p["parameter_name"], p.get("parameter_default")) for p in parameters]
    try:
        answer = httpx.post(f"{base}run/race", json={"data": data}, timeout=waiting(seconds))
    except httpx.ReadTimeout:
        return None
    return answer.json()["data"][0]


def ask_in_the_queue(address: str, form: dict[str, Any], seconds: float) -> dict[str, Any] | None:
    base = f"{address.rstrip('/')}/gradio_api/call/v2/race"
    event = httpx.post(base, json=form, timeout=waiting(PATIENCE)).json()["event_id"]
    try:
        answer = httpx.get(f"{base}/{event}", timeout=waiting(seconds)).text
    except httpx.ReadTimeout:
        return None
    return json.loads(answer.rpartition("data: ")[2])[0]


def ask_as_an_agent(address: str, form: dict[str, Any], seconds: float) -> dict[str, Any] | None:
    async def talk() -> dict[str, Any] | None:
        async with agent(address) as session:
            with anyio.move_on_after(seconds):
                content = (await session.call_tool("race", form)).content[0]
                assert isinstance(content, types.TextContent)
                return ast.literal_eval(content.text)
        return None

    return anyio.run(talk)


@pytest.mark.parametrize("ask", [ask_directly, ask_in_the_queue, ask_as_an_agent])
def test_a_caller_who_hangs_up_frees_the_machine_and_one_who_stays_gets_the_report(
    address: str, page: Client, ask: Callable[..., dict[str, Any] | None]
) -> None:
    assert ask(address, ENDLESS, 1) is None
    page.submit(api_name="/race", **LOOP, max_new_tokens=8).result(timeout=PATIENCE)
    report = ask(address, ENDLESS | {"max_new_tokens": 20}, 60)
    assert report
    assert report["columns"][0]["tokens"] == 20


def test_grammars_are_checked_and_settings_listed(page: Client) -> None:
    fit = page.predict("regex", "[ab]+", "abc", api_name="/grammar_check")
    assert fit == {"accepted_characters": 2, "may_end_here": True}
    with pytest.raises(Exception, match="nothing"):
        page.predict("lark", "start: nothing", "", api_name="/grammar_check")
    names = {name for name, _, _ in page.predict(api_name="/settings")}
    assert {"kv", "speculative", "lookahead"} <= names


def test_an_agent_s_cancelled_call_ends_its_race_and_the_next_one_runs(address: str) -> None:
    async def talk() -> None:
        async with agent(address) as session:
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
