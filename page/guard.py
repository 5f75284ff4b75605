"""Stands between the network and gradio, and lets through only what the page needs.

gradio serves about sixty addresses: uploads, files, a proxy, recorded sessions. The page needs ten
of them. All others answer 404.
"""

import asyncio
import gzip
import re
import secrets
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlencode

import brotli
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backend.errors import DerbyError, explain
from backend.web.bodies import RefusedError, json_body, with_body
from backend.web.presence import Presence
from page.calls import Functions, named_session, read_call
from page.headers import marked, security_headers
from page.identity import COOKIE, known_cookie, new_cookie, session_of, visitor_of
from page.modules import PLACE
from page.site import Site
from page.stream import HERE, STOP, STREAM, visitor_asking

DOCUMENT = "/"
#: How the document is compressed for browsers that accept it, the best first. In about 3 ms.
_CODINGS: Mapping[str, Callable[[bytes], bytes]] = {
    "br": lambda body: brotli.compress(body, quality=5),
    "gzip": lambda body: gzip.compress(body, 6),
}
#: Where programs that called a function of the API read what it yields.
QUEUE = "/gradio_api/queue/data"
#: Where agents call, if the page has tools for them.
AGENTS = "/mcp"
#: Where whoever watches over servers asks whether this one answers.
HEALTH = "/health"
_API = "/gradio_api/"
_OWN = "/derby/"
#: What gradio's panel on the API asks for of features that this page does not have, and the answer
#: without them.
_WITHOUT: dict[str, Any] = {"/monitoring/summary": {}, f"{_API}mcp/schema": []}
_FILES = ("/assets/", "/static/")
_READ = {
    DOCUMENT,
    QUEUE,
    STREAM,
    PLACE,
    "/theme.css",
    "/favicon.ico",
    HEALTH,
    "/robots.txt",
    "/config",
    f"{_API}app_id",
    f"{_API}info",
    f"{_API}startup-events",
    *_WITHOUT,
}

#: Bytes of a body from which on reading it takes longer than a thread's start.
_LONG = 2**14

#: Connections that one visitor may hold open; each tab has one while something runs.
MAX_OPEN = 24


class Guard:
    """ASGI middleware. `presence` is told of connections that stay open, by their session. `agents`
    answers agents; None: the page has no tools for them.
    """

    def __init__(
        self,
        app: ASGIApp,
        site: Site,
        functions: Functions,
        request_bytes: int,
        presence: Presence,
        agents: ASGIApp | None = None,
    ) -> None:
        self._app = app
        self._agents = agents
        self._site = site
        self._functions = functions
        self._request_bytes = request_bytes
        self._presence = presence

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(Request(scope, receive), send)
        else:
            await send({"type": "websocket.close"})

    async def _answer(self, request: Request, send: Send) -> None:
        outgoing = _Outgoing(request, send, self._site)
        try:
            self._require_place(request)
            await self._passed_on(request, outgoing)
        except RefusedError as refused:
            await outgoing.refuse(refused.status, str(refused))
        except DerbyError as error:
            await outgoing.refuse(400, str(error))
        except ClientDisconnect:
            pass  # nobody is left to be answered
        except Exception as error:
            # A stream that nobody asked for ends so, once its answer has begun.
            known = isinstance(error.__cause__ or error, HTTPException)
            await outgoing.refuse(500, "There is no such stream." if known else explain(error))

    def _require_place(self, request: Request) -> None:
        """Raise RefusedError unless the page may be reached by that name, from that origin, at that
        address.
        """
        host = request.headers.get("host", "")
        if not self._site.serves(host):
            raise RefusedError(
                f"This page does not answer to the name {host!r:.80}: its operator can allow it "
                "with --public-host NAME.",
                421,
            )
        origin = request.headers.get("origin")
        api = request.url.path.startswith((_API, _OWN, AGENTS))
        foreign = api and request.headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if foreign or (origin is not None and not self._site.trusts(origin, host)):
            raise RefusedError(
                f"A page of {origin or 'another site'!r:.80} may not use this one: if it is a "
                f"proxy of this page, its operator can allow it with --public-host NAME.",
                403,
            )
        if request.scope["path"] == AGENTS and self._agents and request.method != "POST":
            # Clients of the protocol try GET, and take 405 for "there is no such stream".
            raise RefusedError("Agents call by POST; there are no sessions to read or end.", 405)
        if not self._offers(request.method, request.scope["path"]):
            raise RefusedError("There is nothing at this address.", 404)

    def _offers(self, method: str, path: str) -> bool:
        if method == "POST":
            agents = path == AGENTS and self._agents is not None
            return agents or path in self._functions or path in (STOP, HERE)
        readable = path in _READ or path.startswith(_FILES)
        return method in ("GET", "HEAD") and readable

    async def _passed_on(self, request: Request, outgoing: "_Outgoing") -> None:
        """Pass the request on, with the server's own name for the session."""
        scope, receive, path = dict(request.scope), request.receive, request.scope["path"]
        if path == AGENTS and self._agents is not None:
            await self._agents(scope, receive, outgoing)
            return
        if path in _WITHOUT:
            await JSONResponse(_WITHOUT[path])(scope, receive, outgoing)
            return
        if path.startswith(_OWN):
            await self._held(visitor_asking(request), scope, receive, outgoing)
            return
        visitor = ""
        if request.method == "POST":
            session, body = await self._called(request)
            visitor = visitor_of(session)
            scope, receive = with_body(scope, body, receive)
        elif path == QUEUE:
            session = self._session(request, request.query_params.get("session_hash"))
            visitor = visitor_of(session)
            scope["query_string"] = urlencode({"session_hash": session}).encode()
        await self._held(visitor, scope, receive, outgoing)

    def _session(self, request: Request, named: Any) -> str:
        return session_of(request.cookies.get(COOKIE, ""), named_session(named))

    async def _called(self, request: Request) -> tuple[str, bytes]:
        """The session of the call in the request's body, and the call. Raises DerbyError."""
        body = await json_body(request, self._request_bytes)
        arities = self._functions[request.scope["path"]]
        arguments = (body, arities, lambda named: self._session(request, named))
        if len(body) > _LONG:
            return await asyncio.to_thread(read_call, *arguments)
        return read_call(*arguments)

    async def _held(
        self, visitor: str, scope: Scope, receive: Receive, outgoing: "_Outgoing"
    ) -> None:
        """Pass a request on. Its visitor, if known, counts as present until it is answered."""
        if not visitor:
            await self._app(scope, receive, outgoing)
            return
        if self._presence.count(visitor) >= MAX_OPEN:
            raise RefusedError(
                f"This page holds {MAX_OPEN} connections already: close some of its tabs.", 429
            )
        called = scope["path"] in self._functions  # by a page or by a program
        address = scope["client"][0] if scope.get("client") else ""
        with self._presence.there(visitor, page=not called, address=address):
            await self._app(scope, receive, outgoing)


class _Outgoing:
    """A sender that adds headers to every answer. To the document it also adds a visitor's cookie
    and the nonces of its scripts, and compresses it to a seventh for browsers that accept that.
    """

    def __init__(self, request: Request, send: Send, site: Site) -> None:
        self._request = request
        self._send = send
        self._framed = site.space
        self._secure = site.secure(request.url.scheme, request.headers)
        self._nonce = secrets.token_urlsafe(16)
        self._document = request.scope["path"] == DOCUMENT and request.method == "GET"
        accepted = re.findall(r"\w+", request.headers.get("accept-encoding", ""))
        self._coding = next((name for name in _CODINGS if name in accepted), "")
        self._new = not known_cookie(request.cookies.get(COOKIE, ""))
        self._start: Message | None = None
        self._begun = False
        self._chunks: list[bytes] = []

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            self._add_headers(message)
            if not self._document:
                await self._begin(message)
        elif not self._document or message["type"] != "http.response.body":
            await self._send(message)
        else:
            self._chunks.append(message.get("body", b""))
            if not message.get("more_body", False):
                await self._send_document()

    def _add_headers(self, message: MutableMapping[str, Any]) -> None:
        headers = MutableHeaders(scope=message)
        headers.update(security_headers(self._nonce, framed=self._framed))
        if self._document and self._new:
            cookie = new_cookie(framed=self._framed, secure=self._secure)
            headers.append("Set-Cookie", cookie)

    async def _begin(self, message: Message) -> None:
        self._begun = True
        await self._send(message)

    async def _send_document(self) -> None:
        body = marked(b"".join(self._chunks), self._nonce)
        assert self._start is not None  # noqa: S101
        headers = MutableHeaders(scope=self._start)
        headers.add_vary_header("Accept-Encoding")
        if self._coding:  # gradio compresses what has a name like a file's
            body = _CODINGS[self._coding](body)
            headers["Content-Encoding"] = self._coding
        headers["Content-Length"] = str(len(body))
        await self._begin(self._start)
        await self._send({"type": "http.response.body", "body": body})

    async def refuse(self, status: int, sentence: str) -> None:
        """Answer with a sentence, or end an answer that has begun."""
        if self._begun:
            await self._send({"type": "http.response.body", "body": b""})
            return
        self._document = False
        refusal = JSONResponse({"detail": sentence}, status)
        await refusal(self._request.scope, self._request.receive, self)
