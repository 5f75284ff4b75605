"""The server without its port: who may ask, for what, and how answers are sent."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from backend.errors import Cause, DerbyError, explain
from backend.events import Event, Failed
from backend.kvcache.sources import Visitor
from backend.racing.hosts.host import Host
from backend.racing.race import Race
from backend.serving.line import Line
from backend.serving.models import Offered
from backend.serving.replies import Reply, as_event, as_json, error_of
from backend.serving.requests import Asked, RefusedError, read_asked, read_body
from backend.web.address import LOOPBACK, host_name

#: Seconds in which a request's body must have come.
PATIENCE = 30

#: The status of an answer that failed before it began.
STATUS: dict[Cause, int] = {"request": 400, "program": 500, "worker": 503, "machine": 503}

#: Seconds after which a client may try again that found the line full.
RETRY_AFTER = 5

_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True, slots=True)
class Doors:
    """Who may ask: whoever knows the `key`. "": programs of this machine, by its own names, so that
    no website can have a browser ask under a name of its own that points here.
    """

    key: str = ""

    def require_entry(self, request: Request) -> None:
        """Raises RefusedError for whoever may not ask."""
        if self.key:
            given = request.headers.get("authorization", "").encode()
            if not secrets.compare_digest(given, f"Bearer {self.key}".encode()):
                raise RefusedError(
                    "The API key is missing or wrong: send it as Authorization: Bearer KEY.",
                    401,
                    code="invalid_api_key",
                )
            return
        host = request.headers.get("host", "")
        if host_name(host) not in LOOPBACK:
            raise RefusedError(
                f"This server is not served as {host!r:.80}: ask for it as 127.0.0.1, or have its "
                "operator start it with an API key.",
                421,
            )


class Server:
    """Completions on a host that it does not close. One scope of KV caches for all clients."""

    def __init__(self, host: Host, offered: Offered, key: str = "") -> None:
        self._host = host
        self._offered = offered
        self._doors = Doors(key)
        self._line = Line(host, offered.offer.limits)
        self._scope = Visitor(secrets.token_hex(16))
        self._started = int(time.time())

    def app(self) -> Starlette:
        handlers: Any = {DerbyError: _refused, HTTPException: _no_such_thing, Exception: _broken}
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/v1/models", self._models),
                Route("/v1/completions", self._completion, methods=["POST"]),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
            ],
            exception_handlers=handlers,
        )

    async def _health(self, _: Request) -> Response:
        if preparing := self._host.facts().preparing:
            raise RefusedError(preparing, 503, code="preparing")
        return JSONResponse({"status": "ok"})

    async def _models(self, request: Request) -> Response:
        self._doors.require_entry(request)
        named = {"object": "model", "created": self._started, "owned_by": "decode-derby"}
        models = [{"id": name, **named} for name in self._offered.names()]
        return JSONResponse({"object": "list", "data": models})

    async def _completion(self, request: Request) -> "_Answer":
        return await self._answer(request, chat=False)

    async def _chat(self, request: Request) -> "_Answer":
        return await self._answer(request, chat=True)

    async def _answer(self, request: Request, *, chat: bool) -> "_Answer":
        self._doors.require_entry(request)
        body = await _body(request, self._offered.offer.limits.request_bytes)
        asked = read_asked(read_body(body), self._offered, chat=chat)
        race = Race(asked.request, (asked.column,), asked.target, scope=self._scope)
        return _Answer(asked, self._line.events(race), self._offered.offer.public)


async def _body(request: Request, most: int) -> bytes:
    """The request's body, of which no more is kept than is allowed. Raises RefusedError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # which a website may not send here without asking
        raise RefusedError(
            "The body must be JSON: send it with the header Content-Type: application/json.", 415
        )
    body = bytearray()
    try:
        async with asyncio.timeout(PATIENCE):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise RefusedError(
                        f"A request may have {most:,} bytes; this one has more: shorten its texts.",
                        413,
                    )
    except ClientDisconnect as error:
        raise RefusedError("The request's body did not come whole: send it again.") from error
    except TimeoutError as error:
        raise RefusedError(
            f"The request did not come within {PATIENCE} seconds: send it again.", 408
        ) from error
    return bytes(body)


class _Answer:
    """What is sent for a request: an ASGI response. The race ends if its client goes away."""

    def __init__(
        self,
        asked: Asked,
        events: AsyncGenerator[Event, None],
        public: Callable[[str], str],
    ) -> None:
        """`public` takes the operator's paths out of a sentence."""
        self._asked = asked
        self._events = events
        self._public = public
        self._reply = Reply(asked)
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _while_there(receive, self._send(scope, receive, send))

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events) as events:
            if self._asked.stream:
                await self._stream(events, send)
                return
            async for event in events:
                self._reply.add(event)
                self._require_health(event)
        await Response(as_json(self._reply.whole()), media_type="application/json")(
            scope, receive, send
        )

    async def _stream(self, events: AsyncGenerator[Event, None], send: Send) -> None:
        """Send chunks as they come. What fails before the first one is answered with a status."""
        try:
            async for event in events:
                chunk = self._reply.add(event)
                self._require_health(event)
                if chunk is not None:
                    await self._say(send, as_json(chunk))
            for chunk in self._reply.last():
                await self._say(send, as_json(chunk))
        except RefusedError as error:
            if not self._begun:
                raise
            await self._say(send, as_json(error_of(error)))
        await self._say(send, b"[DONE]")
        await send({"type": "http.response.body", "body": b""})

    def _require_health(self, event: Event) -> None:
        """Raises RefusedError if the column has failed."""
        if isinstance(event, Failed):
            raise RefusedError(self._public(event.message), STATUS[event.cause])

    async def _say(self, send: Send, data: bytes) -> None:
        if not self._begun:
            self._begun = True
            await send({"type": "http.response.start", "status": 200, "headers": _STREAM})
        await send({"type": "http.response.body", "body": as_event(data), "more_body": True})


async def _while_there(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do the work, but end it once the client has gone."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refused(_: Request, error: Exception) -> Response:
    refused = error if isinstance(error, RefusedError) else RefusedError(explain(error))
    headers = {"Retry-After": str(RETRY_AFTER)} if refused.status == 503 else None
    return JSONResponse(error_of(refused), refused.status, headers)


async def _no_such_thing(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    sentence = (
        "There is nothing at this address: see /v1/models, /v1/completions, /v1/chat/completions."
    )
    return JSONResponse(error_of(RefusedError(sentence, status)), status)


async def _broken(_: Request, error: Exception) -> Response:
    return JSONResponse(error_of(RefusedError(explain(error), 500)), 500)
