"""What guests may send to a public page: ASGI middleware between the network and gradio."""

import asyncio
import json
import re
import secrets
from collections import deque

import gradio as gr
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_BYTES = 2**20
BODY_SECONDS = 30
NESTING = 64
COOKIE = "derby"
_API = "/gradio_api/"
#: What the page and programs need there. Uploads, files and proxies are not among it.
_NEEDED = {
    *("app_id", "call", "cancel", "heartbeat", "info", "mcp", "openapi.json", "queue", "reset"),
    *("run", "startup-events", "theme.css"),
}


#: The last events of gradio's queue whose streams have ended, by their ids.
HUNG_UP: deque[str] = deque(maxlen=1000)


def guest_of(request: gr.Request) -> str:
    """Who asks: a browser by its cookie, programs together by their address."""
    return request.cookies.get(COOKIE) or (request.client.host if request.client else "")


class _RefusedError(Exception):
    """A status of HTTP and a sentence."""


class Guests:
    """Refuses files, and bodies that are large or deep, and gives each browser a cookie."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        place = scope["path"].partition(_API)[2]
        try:
            _require_needed(scope["path"], place)
            if request.method not in ("GET", "HEAD", "OPTIONS"):
                body = await _body(request)
                _require_harmless(body)
                receive = _again(body, receive)
        except ClientDisconnect:
            return
        except _RefusedError as refused:
            status, sentence = refused.args
            await JSONResponse({"detail": sentence}, status)(scope, receive, send)
            return
        document = "text/html" in request.headers.get("accept", "")
        if document and COOKIE not in request.cookies:
            send = _with_cookie(request, send)
        try:
            await self._app(scope, receive, send)
        finally:
            if request.method == "GET" and place.startswith("call/"):
                HUNG_UP.append(place.rpartition("/")[2])


def _require_needed(path: str, place: str) -> None:
    unneeded = _API in path and re.split("[/=]", place)[0] not in _NEEDED
    if unneeded or "/pwa_icon" in path:  # an icon would be drawn in any size
        raise _RefusedError(404, "There is nothing at this address.")


async def _body(request: Request) -> bytes:
    """The body. Of one that is too long or too slow, no more is read."""
    long = _RefusedError(413, f"A request may have at most {BODY_BYTES:,} bytes.")
    if int(request.headers.get("content-length") or 0) > BODY_BYTES:
        raise long
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > BODY_BYTES:
                    raise long
    except TimeoutError as error:
        sentence = f"The request did not arrive within {BODY_SECONDS} seconds."
        raise _RefusedError(408, sentence) from error
    return bytes(body)


def _require_harmless(body: bytes) -> None:
    """Raise for a body that nests deeply, and for a file of gradio's, whose path or address it
    would open.
    """
    deep = _RefusedError(400, f"A request may nest at most {NESTING} deep.")
    try:
        value = json.loads(body or b"null")
    except ValueError as error:
        raise _RefusedError(400, "The request is not JSON.") from error
    except RecursionError as error:
        raise deep from error
    level, depth = [value], 0
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        if depth > NESTING:
            raise deep
        if any("path" in item and "meta" in item for item in level if isinstance(item, dict)):
            raise _RefusedError(400, "The page takes no files.")
        level = [
            inner for item in level for inner in (item.values() if isinstance(item, dict) else item)
        ]


def _again(body: bytes, receive: Receive) -> Receive:
    """A receiver that begins with a body that has been read."""
    first: list[Message] = [{"type": "http.request", "body": body}]

    async def received() -> Message:
        return first.pop() if first else await receive()

    return received


def _with_cookie(request: Request, send: Send) -> Send:
    """A sender that gives a browser its cookie, also in the frame of a Space."""
    https = "https" in (request.url.scheme, request.headers.get("x-forwarded-proto"))
    framed = "SameSite=None; Secure; Partitioned" if https else "SameSite=Lax"

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            cookie = f"{COOKIE}={secrets.token_urlsafe(16)}; Path=/; HttpOnly; {framed}"
            MutableHeaders(scope=message).append("Set-Cookie", cookie)
        await send(message)

    return sent
