"""What guests of a public page may send: a small app of gradio's behind the middleware."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import pytest
from browser import small_app
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from starlette.types import Message, Scope

from page import guests
from page.guests import COOKIE, NESTING, WAITING, Guests

JOIN, RACE = "gradio_api/queue/join", "gradio_api/call/race"


@pytest.fixture(scope="module")
def app() -> Iterator[str]:
    with small_app("small_app.py", "") as found:
        yield found


@pytest.fixture
def small(app: str) -> Iterator[str]:
    yield app
    with httpx.Client(base_url=app, timeout=60) as client:
        result(client, "finish")  # what a test that fails leaves behind


def browser(address: str, stack: ExitStack) -> httpx.Client:
    """A browser that has opened the page, and so has its cookie."""
    client = stack.enter_context(httpx.Client(base_url=address, timeout=60))
    assert client.get("", headers={"Accept": "text/html"}).status_code == 200
    assert client.cookies[COOKIE]
    return client


def result(client: httpx.Client, name: str, value: str = "") -> str:
    """What a function of the app answers."""
    event = client.post(f"gradio_api/call/{name}", json={"data": [value]}).json()["event_id"]
    return last(client, event)


def last(client: httpx.Client, event: str) -> str:
    return json.loads(client.get(f"{RACE}/{event}").text.rpartition("data: ")[2])[0]


def begun(client: httpx.Client, prompt: str) -> str:
    """Start a race that lasts until `finish` is called: its event."""
    return client.post(RACE, json={"data": [prompt]}).json()["event_id"]


def test_five_browsers_get_their_turns_and_one_has_two_waiting_races(small: str) -> None:
    with ExitStack() as stack:
        first, *others = [browser(small, stack) for _ in range(5)]
        races = [(first, begun(first, "endless 0"))]
        while result(first, "running") != "endless 0":
            pass
        races += [(first, begun(first, "waiting")) for _ in range(WAITING)]
        for session in ("a", "b"):  # two tabs
            call = {"data": ["more"], "fn_index": 0, "session_hash": session}
            for refused in (first.post(JOIN, json=call), first.post(RACE, json={"data": ["more"]})):
                assert refused.status_code == 429
                assert "waiting" in refused.json()["detail"]
        assert result(first, "hello", "you") == "hello you", "it is no race"
        races += [(other, begun(other, "other")) for other in others]
        result(first, "finish")
        assert all("ended" in last(client, event) for client, event in races)
        assert result(first, "race", "later") == "later ended"


def test_what_a_race_yields_streams_through(small: str) -> None:
    with (
        httpx.Client(base_url=small, timeout=60) as client,
        client.stream("GET", f"{RACE}/{begun(client, 'endless')}") as answer,
    ):
        lines = (line for line in answer.iter_lines() if line.startswith("data"))
        assert "endless runs" in next(lines)
        result(client, "finish")
        assert "endless ended" in list(lines)[-1]


def test_a_program_without_a_cookie_has_two_waiting_races_a_session(small: str) -> None:
    with httpx.Client(base_url=small, timeout=60) as client:
        begun(client, "endless")
        while not result(client, "running"):
            pass
        call = {"data": ["waiting"], "fn_index": 0}
        for session in ("a", "b"):
            codes = [
                client.post(JOIN, json=call | {"session_hash": session}).status_code
                for _ in range(WAITING + 1)
            ]
            assert codes == [200] * WAITING + [429]
        result(client, "finish")
        assert result(client, "race", "later") == "later ended"


FILE = {"path": "/etc/hostname", "meta": {"_type": "gradio.FileData"}}


def test_no_upload_no_file_and_no_address_of_a_visitor_is_opened(small: str) -> None:
    with ExitStack() as stack:
        client = browser(small, stack)
        for place in ("upload", "upload/", "component_server", "process_recording", "stream/1"):
            answer = client.post(f"gradio_api/{place}", files={"files": ("a.txt", b"a")})
            assert answer.status_code == 404, place
        for place in (
            "file=/etc/hostname",
            "file/etc/hostname",
            f"file={guests.__file__}",
            "proxy=https://example.org/",
            "upload_progress?upload_id=1",
            "deep_link?session_hash=a",
            "runs",
        ):
            assert client.get(f"gradio_api/{place}").status_code == 404, place
        assert client.get("pwa_icon/100000").status_code == 404
        for item in (FILE, [FILE], {"a": [FILE]}, FILE | {"path": "https://example.org/a"}):
            answer = client.post("gradio_api/call/hello", json={"data": [item]})
            assert (answer.status_code, answer.json()["detail"]) == (
                400,
                "The page takes no files.",
            )


def test_what_the_page_needs_is_there(small: str) -> None:
    with ExitStack() as stack:
        client = browser(small, stack)
        document = client.get("").text
        for place in {part.split('"')[0] for part in document.split('="./')[1:]}:
            assert client.get(place).status_code == 200, place
        for place in ("config", "gradio_api/info", "gradio_api/app_id", "gradio_api/mcp/schema"):
            assert client.get(place).status_code == 200, place
        assert result(client, "hello", "you") == "hello you"


def test_no_race_of_the_page_passes_its_line(address: str) -> None:
    with httpx.Client(base_url=address, timeout=60) as client:
        functions = client.get("config").json()["dependencies"]
        queued = [f for f in functions if f["backend_fn"] and f["queue"]]
        assert queued
        for function in queued:
            call = {"data": [], "fn_index": function["id"], "session_hash": "a"}
            assert client.post("gradio_api/run/predict", json=call).status_code == 404


def deep(depth: int) -> bytes:
    return b'{"data": [%s]}' % (b"[" * (depth - 2) + b"]" * (depth - 2))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (deep(NESTING), 200),
        (deep(NESTING + 1), 400),
        (b"[" * 3000, 400),
        (b'{"a":' * 3000 + b"1" + b"}" * 3000, 400),
        (json.dumps({"data": ["[{\\" * 3000 + '"[']}).encode(), 200),
        (b'{"data": ["' + b'\\"' * 300_000, 400),
        (b'{"data": [' + b"9" * 5000 + b"]}", 400),
        (b"\xff", 400),
        (b'{"data": ["' + b"a" * 1_000_000 + b'"]}', 200),
        (b'{"data": ["' + b"a" * 2_000_000 + b'"]}', 413),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_bodies_are_bounded(small: str, body: bytes, status: int) -> None:
    plain = {"Content-Type": "application/json"}
    answer = httpx.post(f"{small}gradio_api/call/hello", content=body, headers=plain)
    assert answer.status_code == status
    if status != 200:
        assert answer.json()["detail"].endswith(".")


def refused(monkeypatch: pytest.MonkeyPatch, parts: Iterator[bytes]) -> int:
    """The status for a request that sends these parts of a body and then stays open."""
    sent = list[Message]()

    async def receive() -> Message:
        for part in parts:
            return {"type": "http.request", "body": part, "more_body": True}
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    async def unreachable(*_: object) -> None:
        raise AssertionError("gradio was asked")

    monkeypatch.setattr(guests, "BODY_SECONDS", 0.05)
    scope: Scope = {"type": "http", "method": "POST", "path": f"/{JOIN}", "headers": []}
    asyncio.run(Guests(unreachable)(scope, receive, send))
    return sent[0]["status"]


def test_no_more_of_a_body_is_taken_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = iter([b"a" * 2**18] * 240)
    assert refused(monkeypatch, parts) == 413
    assert len(list(parts)) == 240 - 5


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(monkeypatch, iter([b'{"data": ['])) == 408


def half_sent(address: str) -> socket.socket:
    """A connection of a request that has sent half of its body."""
    place = urlsplit(address)
    connection = socket.create_connection((place.hostname, place.port), timeout=60)
    connection.sendall(
        b"POST /gradio_api/queue/join HTTP/1.1\r\nHost: localhost\r\n"
        b'Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"data": ['
    )
    return connection


def called(client: httpx.Client) -> bool:
    """Call a function that answers at once, as an open page does."""
    functions = client.get("config").json()["dependencies"]
    quiet = (f for f in functions if f["backend_fn"] and not f["queue"] and not f["inputs"])
    call = {"data": [], "fn_index": next(quiet)["id"], "session_hash": "a"}
    return client.post("gradio_api/run/predict", json=call).status_code == 200


@pytest.mark.parametrize("place", ["small", "address"])
def test_others_are_answered_while_floods_stand(place: str, request: pytest.FixtureRequest) -> None:
    """130 half-sent bodies, forty of 3,000 brackets, one of 60 MB, and a hundred beginnings of
    clients of the tools.
    """
    address = request.getfixturevalue(place)
    beginning = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-03-26",
            "capabilities": {},
            "clientInfo": {"name": "a", "version": "1"},
        },
    }
    accepted = {"Accept": "application/json, text/event-stream"}

    async def flood() -> list[int]:
        async with httpx.AsyncClient(base_url=address, timeout=60) as client:
            posts = [client.post(JOIN, content=b"[" * 3000) for _ in range(40)]
            posts.append(client.post(JOIN, content=b" " * 60_000_000))
            posts += [
                client.post("gradio_api/mcp/", json=beginning, headers=accepted) for _ in range(100)
            ]
            return [answer.status_code for answer in await asyncio.gather(*posts)]

    with ExitStack() as stack:
        visitor = browser(address, stack)
        for _ in range(130):
            stack.enter_context(half_sent(address))
        codes = list[int]()
        flooding = threading.Thread(target=lambda: codes.extend(asyncio.run(flood())))
        flooding.start()
        answers = 0
        while flooding.is_alive():
            assert visitor.get("", headers={"Accept": "text/html"}).status_code == 200
            assert called(visitor)
            answers += 1
        assert answers >= 2, "the visitor waited for the flood"
        assert codes == [400] * 40 + [413] + [200] * 100
        assert called(visitor)  # while the half-sent bodies stand


def test_tools_answer_through_it(small: str) -> None:
    async def called() -> str:
        async with (
            streamable_http_client(f"{small}gradio_api/mcp/") as (read, write, _),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            answer = await session.call_tool("race", {"prompt": "tool"})
            return answer.content[0].model_dump()["text"]

    assert "tool ended" in asyncio.run(called())


def test_a_sub_path_of_a_proxy_works() -> None:
    with small_app("small_app.py", "/derby") as local:
        for base in (local, f"{local}derby/"):  # of a proxy that takes the path away, or not
            with httpx.Client(base_url=base, timeout=60) as client:
                assert client.get("config").json()["root"].endswith("/derby")
                assert result(client, "hello", "you") == "hello you"
                assert client.post("gradio_api/upload").status_code == 404
                assert client.get("gradio_api/file=/etc/hostname").status_code == 404


@pytest.mark.parametrize(("scheme", "framed"), [("http", False), ("https", True)])
def test_the_cookie_is_kept_in_the_frame_of_a_space(small: str, scheme: str, framed: bool) -> None:
    headers = {"Accept": "text/html", "X-Forwarded-Proto": scheme}
    answer = httpx.get(small, headers=headers)
    assert ("SameSite=None; Secure; Partitioned" in answer.headers["set-cookie"]) == framed
    again = httpx.get(small, headers=headers, cookies={COOKIE: answer.cookies[COOKIE] or ""})
    assert "set-cookie" not in again.headers
