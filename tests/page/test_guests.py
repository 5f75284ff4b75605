"""What guests of a public page may send, over HTTP, to a small app behind the middleware. No file,
address or upload of a guest is opened; a body is bounded; what page and tools need is there, also
below a path.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest
from browser import small_apps
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from starlette.types import Message, Scope

from page import guests
from page.guests import COOKIE, Guests

JOIN, RACE = "gradio_api/queue/join", "gradio_api/call/race"

FILE = {"path": "/etc/hostname", "meta": {"_type": "gradio.FileData"}}


@pytest.fixture(scope="module")
def apps() -> Iterator[list[str]]:
    """The address of one at the root, and of one below a path."""
    with small_apps("guests") as addresses:
        yield addresses


@pytest.fixture
def small(apps: list[str]) -> Iterator[str]:
    yield apps[0]
    with httpx.Client(base_url=apps[0], timeout=60) as client:
        result(client, "finish")  # what a test that fails leaves behind


def browser(address: str, stack: ExitStack) -> httpx.Client:
    """A browser that has opened the page, and so has its cookie."""
    client = stack.enter_context(httpx.Client(base_url=address, timeout=60))
    assert client.get("", headers={"Accept": "text/html"}).status_code == 200
    assert client.cookies[COOKIE]
    return client


def begin(client: httpx.Client, value: str, name: str = "race") -> str:
    """Call a function of the app: the call's event."""
    return client.post(f"gradio_api/call/{name}", json={"data": [value]}).json()["event_id"]


def last(client: httpx.Client, event: str) -> str:
    return json.loads(client.get(f"{RACE}/{event}").text.rpartition("data: ")[2])[0]


def result(client: httpx.Client, name: str, value: str = "") -> str:
    return last(client, begin(client, value, name))


def test_what_a_race_yields_streams_through(small: str) -> None:
    with (
        httpx.Client(base_url=small, timeout=60) as client,
        client.stream("GET", f"{RACE}/{begin(client, 'endless')}") as answer,
    ):
        lines = (line for line in answer.iter_lines() if line.startswith("data"))
        assert "endless runs" in next(lines)
        result(client, "finish")
        assert "endless ended" in list(lines)[-1]


def test_no_upload_no_file_and_no_address_of_a_visitor_is_opened(small: str) -> None:
    with ExitStack() as stack:
        client = browser(small, stack)
        for place in ("upload", "upload/", "component_server", "process_recording", "stream/1"):
            answer = client.post(f"gradio_api/{place}", files={"files": ("a.txt", b"a")})
            assert answer.status_code == 404, place
        for place in (
            "gradio_api/file=/etc/hostname",
            "gradio_api/file/etc/hostname",
            f"gradio_api/file={guests.__file__}",
            "gradio_api/proxy=https://example.org/",
            "gradio_api/upload_progress?upload_id=1",
            "gradio_api/deep_link?session_hash=a",
            "gradio_api/runs",
            "pwa_icon/100000",
        ):
            assert client.get(place).status_code == 404, place
        for item in (FILE, [FILE], {"a": [FILE]}, FILE | {"path": "https://example.org/a"}):
            answer = client.post("gradio_api/call/hello", json={"data": [item]})
            assert answer.status_code == 400, item


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"data": ["' + b"a" * 1_000_000 + b'"]}', 200),
        (b'{"data": ["' + b"a" * 2_000_000 + b'"]}', 413),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, 400),
        (b'{"data": [' + b"9" * 5000 + b"]}", 400),
        (b"\xff", 400),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_bodies_are_bounded_json(small: str, body: bytes, status: int) -> None:
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(f"{small}gradio_api/call/hello", content=body, headers=headers)
    assert answer.status_code == status


def test_no_more_of_a_body_is_read_than_may_be() -> None:
    parts, sent = iter([b"a" * 2**18] * 240), list[Message]()

    async def receive() -> Message:
        return {"type": "http.request", "body": next(parts), "more_body": True}

    async def send(message: Message) -> None:
        sent.append(message)

    async def unreachable(*_: object) -> None:
        raise AssertionError("gradio was asked")

    scope: Scope = {"type": "http", "method": "POST", "path": f"/{JOIN}", "headers": []}
    asyncio.run(Guests(unreachable)(scope, receive, send))
    assert sent[0]["status"] == 413
    assert len(list(parts)) == 240 - 5


def test_page_and_tools_get_what_they_need(small: str) -> None:
    async def ask() -> str:
        async with (
            streamable_http_client(f"{small}gradio_api/mcp/") as (read, write, _),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            answer = await session.call_tool("race", {"prompt": "tool"})
            return answer.content[0].model_dump()["text"]

    with ExitStack() as stack:
        client = browser(small, stack)
        document = client.get("").text
        for place in {part.split('"')[0] for part in document.split('="./')[1:]}:
            assert client.get(place).status_code == 200, place
        for place in ("config", "gradio_api/info", "gradio_api/app_id", "gradio_api/mcp/schema"):
            assert client.get(place).status_code == 200, place
    assert "tool ended" in asyncio.run(ask())


def test_a_path_of_a_proxy_works(apps: list[str]) -> None:
    for base in (apps[1], f"{apps[1]}derby/"):  # of a proxy that takes the path away, or not
        with httpx.Client(base_url=base, timeout=60) as client:
            assert client.get("config").json()["root"].endswith("/derby")
            assert result(client, "hello", "you") == "hello you"
            assert client.post("gradio_api/upload").status_code == 404
            assert client.get("gradio_api/file=/etc/hostname").status_code == 404


@pytest.mark.parametrize(("scheme", "framed"), [("http", False), ("https", True)])
def test_the_cookie_stays_in_the_frame_of_a_space(small: str, scheme: str, framed: bool) -> None:
    headers = {"Accept": "text/html", "X-Forwarded-Proto": scheme}
    answer = httpx.get(small, headers=headers)
    assert ("SameSite=None; Secure; Partitioned" in answer.headers["set-cookie"]) == framed
    again = httpx.get(small, headers=headers, cookies={COOKIE: answer.cookies[COOKIE] or ""})
    assert "set-cookie" not in again.headers
