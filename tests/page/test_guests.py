"""What guests of a public page may send over HTTP: no file, address or upload of a guest is opened,
a body is bounded, each browser has a cookie, and what the page needs is there, also below a path.
"""

import asyncio
from pathlib import Path

import gradio as gr
import httpx
import pytest
from browser import serving
from starlette.requests import Request
from starlette.types import Message, Scope

from page import guests
from page.guests import COOKIE, Guests, guest_of

CALL = "gradio_api/call/settings"

FILE = {"path": "/etc/hostname", "meta": {"_type": "gradio.FileData"}}


def test_no_upload_no_file_and_no_address_of_a_visitor_is_opened(address: str) -> None:
    with httpx.Client(base_url=address, timeout=60) as client:
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
            assert client.post(CALL, json={"data": [item]}).status_code == 400, item


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
def test_bodies_are_bounded_json(address: str, body: bytes, status: int) -> None:
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(f"{address}{CALL}", content=body, headers=headers)
    assert answer.status_code == status


def test_no_more_of_a_body_is_read_than_may_be() -> None:
    parts, sent = iter([b"a" * 2**18] * 240), list[Message]()

    async def receive() -> Message:
        return {"type": "http.request", "body": next(parts), "more_body": True}

    async def send(message: Message) -> None:
        sent.append(message)

    async def unreachable(*_: object) -> None:
        raise AssertionError("gradio was asked")

    scope: Scope = {"type": "http", "method": "POST", "path": f"/{CALL}", "headers": []}
    asyncio.run(Guests(unreachable)(scope, receive, send))
    assert sent[0]["status"] == 413
    assert len(list(parts)) == 240 - 5


def test_a_page_below_a_path_gets_what_it_needs_and_nothing_more(tmp_path: Path) -> None:
    """Of a proxy that takes the path away, or not."""
    with serving(tmp_path, "--root-path", "/derby") as address:
        for base in (address, f"{address}derby/"):
            with httpx.Client(base_url=base, timeout=60) as client:
                assert client.get("config").json()["root"].endswith("/derby")
                document = client.get("").text
                for place in {part.split('"')[0] for part in document.split('="./')[1:]}:
                    assert client.get(place).status_code == 200, place
                assert client.post(CALL, json={"data": []}).status_code == 200
                assert client.post("gradio_api/upload").status_code == 404
                assert client.get("gradio_api/file=/etc/hostname").status_code == 404


@pytest.mark.parametrize(("scheme", "framed"), [("http", False), ("https", True)])
def test_the_cookie_stays_in_the_frame_of_a_space(address: str, scheme: str, framed: bool) -> None:
    headers = {"Accept": "text/html", "X-Forwarded-Proto": scheme}
    answer = httpx.get(address, headers=headers)
    assert ("SameSite=None; Secure; Partitioned" in answer.headers["set-cookie"]) == framed
    again = httpx.get(address, headers=headers, cookies={COOKIE: answer.cookies[COOKIE] or ""})
    assert "set-cookie" not in again.headers


def test_a_browser_is_one_guest_and_so_are_the_programs_of_an_address() -> None:
    def guest(host: str, cookie: str = "") -> str:
        headers = [(b"cookie", f"{COOKIE}={cookie}".encode())] if cookie else []
        scope: Scope = {"type": "http", "client": (host, 1), "headers": headers}
        return guest_of(gr.Request(Request(scope)))

    assert guest("one", "a") == guest("two", "a") != guest("one", "b")
    assert guest("one") == guest("one") != guest("two")
    assert guest("one") != guest("one", "a")
