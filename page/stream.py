"""Our own addresses beside gradio's: a visitor's stream of what runs for them, and the request that
stops it.

The stream consists of server-sent events. Each has a number, so a browser that lost the connection
continues where it was. "end" says that nothing runs any more.
"""

import json
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from backend.web.controller import Controller
from page.identity import COOKIE, visitor_by

STREAM = "/derby/stream"
STOP = "/derby/stop"
#: Where a page says now and then that it is open, though nothing runs.
HERE = "/derby/here"

#: Milliseconds after which a browser connects again.
RETRY = 1000

#: What "end" says, for a page that still shows something running.
GONE = "Your race is no longer in memory: run it again."

_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def visitor_asking(request: Request) -> str:
    """The visitor who sends a request to one of these addresses; "" if that is unknown."""
    return visitor_by(request.cookies.get(COOKIE, ""), request.query_params.get("key", ""))


def routes(controller: Controller) -> list[Route]:
    """The routes. The guard makes sure that the visitor counts as present while a request lasts."""

    async def stream(request: Request) -> Response:
        return StreamingResponse(_events(controller, request), 200, _HEADERS, "text/event-stream")

    async def stop(request: Request) -> Response:
        controller.stop(visitor_asking(request))
        return Response(status_code=204)

    async def here(_: Request) -> Response:
        return Response(status_code=204)

    return [
        Route(STREAM, stream),
        Route(STOP, stop, methods=["POST"]),
        Route(HERE, here, methods=["POST"]),
    ]


async def _events(controller: Controller, request: Request) -> AsyncIterator[bytes]:
    yield f"retry: {RETRY}\n\n".encode()
    last, query = 0, request.query_params
    for text in (request.headers.get("last-event-id", ""), query.get("after", "")):
        last = max(last, int(text) if text.isdecimal() and len(text) < 20 else 0)
    if visitor := visitor_asking(request):
        controller.show_preparation(visitor)
        feed = controller.feeds.of(visitor)
        async for message in feed.read(last, quiet=bool(query.get("quiet"))):
            data = json.dumps(message.data, ensure_ascii=False, separators=(",", ":"))
            event = f"id: {message.number}\nevent: {message.name}\ndata: {data}\n\n"
            yield event.encode(errors="replace")
    yield f"event: end\ndata: {GONE}\n\n".encode()
