"""The server without its port: who may ask, for what, and how answers are sent."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Send

from backend.errors import Cause, DerbyError, explain
from backend.events import Event, Failed
from backend.kvcache.sources import Visitor
from backend.machine import LOOPBACK
from backend.racing.hosts.host import Host
from backend.racing.race import Race
from backend.serving.completion import Completion, as_event, as_json, error_of
from backend.serving.models import Offered
from backend.serving.queue import RaceQueue
from backend.serving.requests import Asked, read_asked
from backend.web.address import host_name
from backend.web.bodies import RefusedError, json_body

#: The status of an answer that failed before it began.
STATUS: dict[Cause, int] = {"request": 400, "program": 500, "worker": 503, "machine": 503}

#: Seconds after which a client may try again that found the line full.
RETRY_AFTER = 5


def require_entry(request: Request, key: str) -> None:
    """Raise RefusedError unless the request knows the `key`. "": programs of this machine may ask,
    by its own names, so that no website can have a browser ask under a name that points here.
    """
    if key:
        given = request.headers.get("authorization", "").encode()
        if not secrets.compare_digest(given, f"Bearer {key}".encode()):
            raise RefusedError(
                "The API key is missing or wrong: send it as Authorization: Bearer KEY.",
                401,
                code="invalid_api_key",
            )
        return
    host = request.headers.get("host", "")
    if host_name(host) not in LOOPBACK:
        raise RefusedError(
            f"This server does not answer to the name {host!r:.80}: use 127.0.0.1, or ask its "
            "operator to start it with an API key.",
            421,
        )


class CompletionApi:
    """Completions on a host that it does not close. One scope of KV caches for all clients."""

    def __init__(self, host: Host, offered: Offered, key: str = "") -> None:
        self._host = host
        self._offered = offered
        self._key = key
        self._queue = RaceQueue(host, offered.offer.limits)
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
        require_entry(request, self._key)
        named = {"object": "model", "created": self._started, "owned_by": "decode-derby"}
        models = [{"id": name, **named} for name in self._offered.names()]
        return JSONResponse({"object": "list", "data": models})

    async def _completion(self, request: Request) -> Response:
        return await self._answer(request, chat=False)

    async def _chat(self, request: Request) -> Response:
        return await self._answer(request, chat=True)

    async def _answer(self, request: Request, *, chat: bool) -> Response:
        require_entry(request, self._key)
        body = await json_body(request, self._offered.offer.limits.request_bytes)
        asked = await asyncio.to_thread(read_asked, body, self._offered, chat=chat)
        race = Race(asked.request, (asked.column,), asked.target, scope=self._scope)
        return _Response(asked, self._queue.events(race), self._offered.offer.public)


class _Response(StreamingResponse):
    """What is sent for a request: one piece, or chunks as they come. The race ends if its client
    goes away, for which the base class listens.
    """

    def __init__(
        self,
        asked: Asked,
        events: AsyncGenerator[Event, None],
        public: Callable[[str], str],
    ) -> None:
        """`public` takes the operator's paths out of a sentence."""
        stream = asked.call.stream
        super().__init__(
            (),
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
            media_type="text/event-stream" if stream else "application/json",
        )
        self._stream = stream
        self._events = events
        self._public = public
        self._completion = Completion(asked)

    async def stream_response(self, send: Send) -> None:
        """What fails before the first piece is answered with a status, behind it in the stream."""
        begun = False
        try:
            async with aclosing(self._events), aclosing(self._pieces()) as pieces:
                async for piece in pieces:
                    await self._say(send, piece, begin=not begun)
                    begun = True
        except RefusedError as error:
            if not begun:
                raise
            await self._say(send, as_event(as_json(error_of(error))))
        if self._stream:
            await self._say(send, as_event(b"[DONE]"))
        await send({"type": "http.response.body", "body": b""})

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        async for event in self._events:
            if isinstance(event, Failed):
                raise RefusedError(self._public(event.message), STATUS[event.cause])
            chunk = self._completion.add(event)
            if self._stream and chunk is not None:
                yield as_event(as_json(chunk))
        if not self._stream:
            yield as_json(self._completion.whole())
            return
        for chunk in self._completion.last():
            yield as_event(as_json(chunk))

    async def _say(self, send: Send, data: bytes, *, begin: bool = False) -> None:
        if begin:
            head = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **head})
        await send({"type": "http.response.body", "body": data, "more_body": True})


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
