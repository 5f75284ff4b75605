"""What guests may send to a public page: ASGI middleware between the network and gradio."""

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
    """Refuses files and large bodies, and gives each browser a cookie."""

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
    """The body. Of one that is too long, no more is read."""
    long = _RefusedError(413, f"A request may have at most {BODY_BYTES:,} bytes.")
    if int(request.headers.get("content-length") or 0) > BODY_BYTES:
        raise long
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES:
            raise long
    return bytes(body)


def _require_harmless(body: bytes) -> None:
    """Raise for a body with a file of gradio's, whose path or address it would open."""
    try:
        items = [json.loads(body or b"null")]
    except (ValueError, RecursionError) as error:
        raise _RefusedError(400, "The request is not JSON.") from error
    for item in items:  # which grow meanwhile
        if isinstance(item, dict) and "path" in item and "meta" in item:
            raise _RefusedError(400, "The page takes no files.")
        if isinstance(item, dict | list):
            items += item.values() if isinstance(item, dict) else item


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
