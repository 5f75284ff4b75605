"""A request's body, read up to the allowed size."""

import asyncio

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope

from backend.errors import DerbyError

#: Seconds in which a request's body must have come.
PATIENCE = 30


class RefusedError(DerbyError):
    """A request that is not answered: the status, a sentence, and which field is the matter."""

    def __init__(
        self, sentence: str, status: int = 400, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(sentence)
        self.status, self.param, self.code = status, param, code


async def json_body(request: Request, most: int) -> bytes:
    """The body of at most so many bytes, which says that it is JSON. Raises RefusedError."""
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
        raise RefusedError("The request's body is incomplete: send it again.") from error
    except TimeoutError as error:
        raise RefusedError(
            f"The request did not arrive within {PATIENCE} seconds: send it again.", 408
        ) from error
    return bytes(body)


def with_body(scope: Scope, body: bytes, after: Receive) -> tuple[Scope, Receive]:
    """The request with another body. After it, `after` is awaited for further messages."""
    headers = MutableHeaders(raw=list(scope["headers"]))
    headers["content-length"] = str(len(body))
    del headers["transfer-encoding"]
    parts = [body]

    async def receive() -> Message:
        if not parts:
            return await after()
        return {"type": "http.request", "body": parts.pop(), "more_body": False}

    return {**scope, "headers": headers.raw}, receive
