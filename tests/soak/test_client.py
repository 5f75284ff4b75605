"""The soak's visitors are as patient as a browser, and no more."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from soak.client import Action, Client, FailedError, Page, Resending
from soak.crowd import Log, _garbage

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


async def _asked(answers: list[int], requests: int) -> tuple[int, int]:
    """Send so many requests, one after another, to a server whose connections answer so many each
    and end at the next one: requests sent again, and connections made.
    """
    made: list[asyncio.Event] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended = asyncio.Event()
        made.append(ended)
        with contextlib.suppress(asyncio.IncompleteReadError):  # the client has ended it
            for _ in range(answers[len(made) - 1]):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(ANSWER)
            await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    transport = Resending()
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        try:
            async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
                for _ in range(requests):
                    (await client.get(address)).raise_for_status()
        finally:
            await asyncio.gather(*(ended.wait() for ended in made))
    return transport.resent, len(made)


def test_a_request_on_a_connection_that_had_ended_is_sent_again() -> None:
    """A server closes a connection that was idle for 5 s, and a crowd that is late by so much sent
    its next request into it: "races neither run nor refused" that no browser would have lost.
    """
    assert asyncio.run(_asked([1, 2, 9], 4)) == (2, 3)


def test_a_connection_made_for_a_request_must_answer_it() -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        asyncio.run(_asked([0, 9], 1))


class _Recording(Client):
    """A client whose server takes everything and answers at once."""

    joined: list[Any]
    awaited: list[Any]

    async def join(self, body: Any) -> str:
        self.joined.append(body["session_hash"])
        return "event"

    async def post(self, body: Any) -> str:
        self.awaited.append(body["session_hash"])
        return "event"

    async def outputs(self, event: str) -> AsyncIterator[list[Any]]:
        yield []
        raise FailedError("a value")


def test_garbage_waits_for_no_messages_of_another_session() -> None:
    """The page takes "../.." for a session's name as it takes any; the crowd asked under it, waited
    on its own session's stream and said after 180 s that the race had been lost.
    """
    client = _Recording("http://127.0.0.1")
    client.joined, client.awaited = [], []
    names = {"prompt": 1, "max_new_tokens": 2, "Model": 3, "lineup": 4}
    client.page = Page({"run.click": Action(0, (1, 2, 3, 4), queued=True)}, {}, names)
    for seed in range(300):
        asyncio.run(_garbage(client, "a prompt", random.Random(seed), Log()))
    assert set(client.awaited) == {client.session}
    assert "../.." in client.joined
    assert client.session not in client.joined
