"""A reader of a visitor's stream, as the page's script is one."""

import json
from collections.abc import AsyncIterator, Awaitable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import httpx

from backend.web.controller import Controller


def applied(view: Any, changes: Sequence[Sequence[Any]]) -> Any:
    """The JSON value that `changes` (backend/web/feeds.py) make of this one."""
    whole = {"": deepcopy(view)}
    for path, sign, value in changes:
        place: Any = whole
        *inner, last = ["", *path]
        for name in inner:
            place = place[name]
        place[last] = value if sign == "=" else place[last] + value
    return whole[""]


@dataclass
class Reader:
    """What a page knows: the newest view by name, and the number of the latest news."""

    views: dict[str, Any] = field(default_factory=dict)
    last: int = 0

    def take(self, number: int, name: str, data: Any) -> None:
        self.last = number
        known = isinstance(data, list)
        self.views[name] = applied(self.views[name], data) if known else data

    async def events(
        self, client: httpx.AsyncClient, **query: Any
    ) -> AsyncIterator[tuple[str, Any]]:
        """What the stream says until it ends, by name: views whole, "end" the last of them. Raises
        httpx.HTTPError where the connection is lost: read again, and nothing is missed.
        """
        headers = {"Last-Event-ID": str(self.last)}
        lines: dict[str, str] = {}
        async with client.stream("GET", "/derby/stream", headers=headers, params=query) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line:
                    kind, _, text = line.partition(": ")
                    lines[kind] = text
                    continue
                name, lines["event"] = lines.get("event", ""), ""
                if name == "end":
                    yield name, lines["data"]
                    return
                if name and name != "beat":
                    self.take(int(lines["id"]), name, json.loads(lines["data"]))
                    yield name, self.views[name]
        raise httpx.RemoteProtocolError("The stream ended without an end.")


def read_all(text: str) -> Reader:
    """What a page knows that has read this whole stream."""
    reader = Reader()
    for event in text.split("\n\n"):
        said = dict(line.split(": ", 1) for line in event.split("\n") if ": " in line)
        if said.get("id"):
            reader.take(int(said["id"]), said["event"], json.loads(said["data"]))
    return reader


async def shown(controller: Controller, visitor: str, asked: Awaitable[Any]) -> Any:
    """The last view of what was asked for, or the alert that refused it."""
    answer, reader = await asked, Reader()
    if "alert" in answer:
        return answer
    async for message in controller.feeds.of(visitor).read():
        reader.take(message.number, message.name, message.data)
    return reader.views["race"]
