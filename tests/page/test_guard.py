"""What the server lets through: asked over HTTP, as the app's users start it."""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send
from streams import read_all

from backend.web import bodies
from backend.web.presence import Presence
from page.guard import MAX_OPEN, Guard
from page.identity import COOKIE, visitor_by
from page.site import Site

JOIN = "gradio_api/queue/join"
CALL = "gradio_api/run/predict"
STREAM = "derby/stream"
PLAIN = {"Content-Type": "application/json"}


@pytest.fixture
def visitor(address: str) -> Iterator[httpx.Client]:
    """A browser that has opened the page, and so has its cookie."""
    with httpx.Client(base_url=address, timeout=30) as client:
        client.get("/").raise_for_status()
        yield client


def functions(client: httpx.Client) -> dict[str, Any]:
    """The page's functions as its document tells them: by the label or id that starts them."""
    found = re.search(r"window\.gradio_config = (\{.*?\});</script>", client.get("/").text)
    assert found
    return json.loads(found[1])


def starting(client: httpx.Client, event: str) -> dict[str, Any]:
    """The function that "submit" (Run) beside the prompt calls, with its values as the page first
    shows them.
    """
    config = functions(client)
    ids = {c["props"].get("elem_id"): c["id"] for c in config["components"]}
    values = {c["id"]: c["props"].get("value") for c in config["components"]}
    for function in config["dependencies"]:
        if [ids["ask"], event] in [list(target) for target in function["targets"]]:
            data = [values[number] for number in function["inputs"]]
            called = {"fn_index": function["id"], "data": data, "trigger_id": ids["ask"]}
            return called | {"session_hash": "abc"}
    raise AssertionError(event)


def called(client: httpx.Client, body: dict[str, Any]) -> Any:
    """What the function answers."""
    answer = client.post(CALL, content=json.dumps(body), headers=PLAIN)
    answer.raise_for_status()
    return answer.json()["data"]


def streamed(client: httpx.Client, **query: Any) -> str:
    """How the race stands that the visitor's stream tells of, once nothing runs; "": of none."""
    views = read_all(client.get(STREAM, params=query).raise_for_status().text).views
    return views["race"]["phase"] if views else ""


def sentence(answer: httpx.Response) -> str:
    """Of a refusal: the one sentence in it."""
    detail = answer.json()["detail"]
    assert isinstance(detail, str)
    assert 0 < len(detail) < 400
    assert "Traceback" not in detail
    return detail


def test_uploads_and_all_else_that_the_page_does_not_need_are_not_there(
    visitor: httpx.Client,
) -> None:
    """1,200 uploads were once accepted and kept, one of them from a foreign origin; 500 of one
    request stayed in the temporary folder.
    """
    for address in (
        "upload",
        "component_server",
        "run/race",
        "api/predict",
        "call/race",
        "call/v2/race",
        "cancel",
        "reset",
        "process_recording",
        "vibe-edit",
        "run-history/connect",
        "stream/1",
    ):
        for path in (f"gradio_api/{address}", f"gradio_api/{address}/"):
            answer = visitor.post(path, files={"files": ("a.txt", b"a" * 2000)})
            assert answer.status_code == 404, path
            assert sentence(answer) == "There is nothing at this address."
    for address in (
        "docs",
        "openapi.json",
        "redoc",
        "monitoring",
        "manifest.json",
        "svelte/a.js",
        "login_check",
        "gradio_api/openapi.json",
        "gradio_api/upload_progress?upload_id=1",
        "gradio_api/file=/etc/hostname",
        "gradio_api/file/etc/hostname",
        "gradio_api/proxy=https://example.org/",
        "gradio_api/deep_link?session_hash=a",
        "gradio_api/runs",
        "gradio_api/vibe-code",
        "gradio_api/call/race/1",
        "gradio_api/dev/reload",
        "gradio_api/token",
    ):
        assert visitor.get(address).status_code == 404, address
    for method in ("PUT", "DELETE", "PATCH"):
        assert visitor.request(method, "/").status_code == 404


def test_who_watches_over_servers_is_answered(visitor: httpx.Client) -> None:
    answer = visitor.get("/health")
    assert (answer.status_code, answer.json().keys()) == (200, {"preparing"})


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "", "127.0.0.1@evil.example", "10.0.0.1"]
)
def test_a_name_that_is_not_the_pages_is_refused(visitor: httpx.Client, host: str) -> None:
    """Any `Host` was once accepted: a page whose name is bound anew to 127.0.0.1 could use ours."""
    for answer in (
        visitor.get("/", headers={"Host": host}),
        visitor.post(JOIN, json={}, headers={"Host": host}),
    ):
        assert answer.status_code == 421
        assert "--public-host" in sentence(answer)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.:1", "[::1]:7860", "derby.example"])
def test_the_pages_own_names_are_served(visitor: httpx.Client, host: str) -> None:
    assert visitor.get("/", headers={"Host": host}).status_code == 200


def test_pages_of_other_origins_are_refused(visitor: httpx.Client, address: str) -> None:
    body, path = starting(visitor, "submit"), CALL
    for origin in ("https://evil.example", "null", "http://localhost:1", "file://", "http://"):
        answer = visitor.post(path, json=body, headers={"Origin": origin})
        assert answer.status_code == 403, origin
        assert "--public-host" in sentence(answer)
        assert visitor.get("/", headers={"Origin": origin}).status_code == 403
    for header in ({"Origin": address.rstrip("/")}, {"Origin": "https://derby.example"}, {}):
        assert visitor.post(path, json=body, headers=header).status_code == 200
    foreign = {"Sec-Fetch-Site": "cross-site"}
    assert visitor.post(path, json=body, headers=foreign).status_code == 403
    assert visitor.get(STREAM, headers=foreign).status_code == 403
    assert visitor.post("derby/stop", headers=foreign).status_code == 403


def test_every_answer_says_what_a_browser_may_do_with_it(visitor: httpx.Client) -> None:
    paths = ("/", "/theme.css", "/nothing", "/gradio_api/upload")
    policies = []
    for answer in map(visitor.get, paths):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert "camera=()" in answer.headers["permissions-policy"]
        policies.append(answer.headers["content-security-policy"])
    assert len(set(policies)) == len(paths)  # each has a mark of its own
    rules = dict(rule.split(" ", 1) for rule in policies[0].split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["connect-src"] == rules["frame-ancestors"] == "'self'"
    assert "unsafe-inline" not in rules["script-src"]


def test_the_documents_scripts_bear_its_mark(visitor: httpx.Client) -> None:
    answer = visitor.get("/")
    [nonce] = re.findall(r"'nonce-([\w-]{20,})'", answer.headers["content-security-policy"])
    opened = re.findall(r"<script[^>]*>", answer.text)
    assert opened
    assert all(f'nonce="{nonce}"' in tag for tag in opened)
    assert answer.headers["content-encoding"] == "br"
    assert answer.num_bytes_downloaded == int(answer.headers["content-length"])
    plain = visitor.get("/", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert len(plain.content) == int(plain.headers["content-length"])
    assert len(plain.content) > 4 * answer.num_bytes_downloaded


def test_no_more_of_a_body_is_read_than_is_allowed() -> None:
    """One of 200 MB took 700 MB of memory. Of one whose length is not told, each part counts."""
    taken = list[int]()

    async def receive() -> Message:
        taken.append(1)
        return {"type": "http.request", "body": b"[" * 1000, "more_body": True}

    guard = Guard(unreachable, Site(), {f"/{JOIN}": {0: 1}}, 50_000, Presence())
    assert answered(guard, receive)[0]["status"] == 413
    assert len(taken) == 51


def answered(guard: Guard, receive: Receive) -> list[Any]:
    """What the guard sends to a call whose body comes by `receive`."""
    sent = list[Any]()

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    asyncio.run(guard(scope("POST", f"/{JOIN}", headers), receive, send))
    return sent


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [b"["]

    async def receive() -> Message:
        if not parts:
            await asyncio.Event().wait()  # the client keeps the connection and sends no more
        return {"type": "http.request", "body": parts.pop(), "more_body": True}

    monkeypatch.setattr(bodies, "PATIENCE", 0.01)
    guard = Guard(unreachable, Site(), {f"/{JOIN}": {0: 1}}, 50_000, Presence())
    sent = answered(guard, receive)
    assert sent[0]["status"] == 408
    assert b"did not arrive within" in sent[1]["body"]


@pytest.mark.parametrize("space", [False, True])
def test_nobody_but_the_hub_shows_the_page_in_a_frame(space: bool) -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    guard = Guard(unreachable, Site(space=space), {f"/{JOIN}": {0: 1}}, 50_000, Presence())
    headers = dict(answered(guard, receive)[0]["headers"])
    (framed,) = re.findall(r"frame-ancestors ([^;]*)", headers[b"content-security-policy"].decode())
    assert framed.split() == ["'self'", *["https://huggingface.co", "https://*.hf.space"] * space]


GOOD = b'"data":[],"session_hash":"a"'

ODD: list[tuple[bytes, str]] = [
    (b"", "not JSON"),
    (b"{", "not JSON"),
    (b"\xff\xfe", "not JSON"),
    (b"[]", "must be an object"),
    (b"null", "must be an object"),
    (b"[" * 200_000, "not JSON"),
    (b'{"data":["\\ud800"]}', "not JSON"),
    (b'{"data":[]}', "'fn_index' is missing"),
    (b'{%s,"fn_index":true}' % GOOD, "must be a whole number"),
    (b'{%s,"fn_index":1e3}' % GOOD, "must be a whole number"),
    (b'{%s,"fn_index":%s}' % (GOOD, b"9" * 5000), "not JSON"),
    (b'{%s,"fn_index":-1}' % GOOD, "no function -1"),
    (b'{%s,"fn_index":99999999999999999999}' % GOOD, "no function 9999"),
]


@pytest.mark.parametrize(("body", "told"), ODD, ids=[repr(body[:24]) for body, _ in ODD])
@pytest.mark.parametrize("path", [JOIN, "gradio_api/run/predict"])
def test_what_is_no_call_of_the_page_is_one_sentence(
    visitor: httpx.Client, path: str, body: bytes, told: str
) -> None:
    """gradio once answered such requests with 500 and a traceback of two kilobytes in the log."""
    answer = visitor.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert told in sentence(answer)


def test_a_call_has_the_values_that_its_function_takes(visitor: httpx.Client) -> None:
    run = starting(visitor, "submit")
    rest, deep, beyond = run["data"][1:], json.loads("[" * 40 + "]" * 40), float("inf")
    for data, told in (
        (None, "must be a list"),
        ("text", "must be a list"),
        ([], f"{len(run['data'])} are needed"),
        (rest, f"{len(run['data'])} are needed"),
        ([deep, *rest], "nested more than"),
        ([{"a": [deep]}, *rest], "nested more than"),
        ([beyond, *rest], "a number that is not finite"),
    ):
        body = json.dumps(run | {"data": data})
        answer = visitor.post(CALL, content=body, headers=PLAIN)
        assert answer.status_code == 400
        assert told in sentence(answer)
    for session in (None, "", 1, ["a"], "a" * 65):
        answer = visitor.post(CALL, json=run | {"session_hash": session})
        assert answer.status_code == 400
        assert "session" in sentence(answer)
    plain = visitor.post(CALL, content=json.dumps(run), headers={"Content-Type": "text/plain"})
    assert plain.status_code == 415


def test_what_gradio_would_take_for_a_file_is_refused(visitor: httpx.Client) -> None:
    """gradio fetched the address or path in any value that looks like one of its files, whatever
    the component: a visitor could have the server ask another server for something.
    """
    run = starting(visitor, "submit")
    for path in ("/etc/passwd", "http://127.0.0.1:1/secret"):
        file = {"path": path, "meta": {"_type": "gradio.FileData"}}
        for prompt in (file, [file], {"text": file}):
            answer = visitor.post(CALL, json=run | {"data": [prompt, *run["data"][1:]]})
            assert answer.status_code == 400
            assert sentence(answer) == "The page takes no files."


def test_odd_values_are_told_by_the_form(visitor: httpx.Client) -> None:
    run = starting(visitor, "submit")
    for prompt in ({"path": "/etc/passwd"}, 7, [[]], None):
        [answer] = called(visitor, run | {"data": [prompt, *run["data"][1:]]})
        assert answer.keys() & {"alert", "begun"}


def test_a_race_belongs_to_the_cookie_it_was_begun_with(address: str) -> None:
    """A session's name is drawn by the browser and travels in addresses: whoever read it could once
    end the race and take its texts.
    """
    with (
        httpx.Client(base_url=address, timeout=30) as owner,
        httpx.Client(base_url=address, timeout=30) as thief,
    ):
        for client in (owner, thief):
            [cookie] = [c for c in client.get("/").headers.get_list("set-cookie") if COOKIE in c]
            assert "HttpOnly" in cookie
            assert "SameSite=Lax" in cookie
        assert "set-cookie" not in owner.get("/").headers
        assert owner.cookies[COOKIE] != thief.cookies[COOKIE]
        [answer] = called(owner, starting(owner, "submit"))
        assert answer["key"] == ""
        assert streamed(thief) == ""
        assert streamed(owner) == "ended"
        assert streamed(owner) == "ended", "a page that is loaded anew"
        thief.cookies.clear()
        for key in ("abc", owner.cookies[COOKIE], "bare-", "k" * 100_000):
            assert streamed(thief, key=key[:8000]) == ""


def test_without_a_cookie_a_race_is_told_to_whom_its_key_was_told(address: str) -> None:
    """Frames may forbid cookies."""
    with httpx.Client(base_url=address, timeout=30) as page:
        run = starting(page, "submit")
        page.cookies.clear()
        [answer] = called(page, run)
        assert answer["key"]
        assert streamed(page) == ""
        assert streamed(page, key=answer["key"]) == "ended"


def test_a_reader_that_comes_back_is_sent_what_is_new(visitor: httpx.Client) -> None:
    called(visitor, starting(visitor, "submit"))
    last = read_all(visitor.get(STREAM).text).last
    again = visitor.get(STREAM, headers={"Last-Event-ID": str(last)}).text
    assert "event: race" not in again
    assert "event: end" in again
    for odd in ("", "-1", "x", "9" * 18, "9" * 5000):
        assert "event: race" in visitor.get(STREAM, headers={"Last-Event-ID": odd}).text


def test_connections_of_one_visitor_are_bounded() -> None:
    sent, presence, cookie = list[Any](), Presence(), "c" * 43
    for _ in range(MAX_OPEN):
        presence.opened(visitor_by(cookie, ""))

    async def send(message: Message) -> None:
        sent.append(message)

    guard = Guard(unreachable, Site(), {}, 50_000, presence)
    headers = [(b"host", b"localhost"), (b"cookie", f"{COOKIE}={cookie}".encode())]
    asyncio.run(guard(scope("GET", f"/{STREAM}", headers), nothing, send))
    assert sent[0]["status"] == 429


async def nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def unreachable(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("gradio was asked")


def scope(method: str, path: str, headers: list[tuple[bytes, bytes]]) -> Scope:
    return {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": headers,
    }
