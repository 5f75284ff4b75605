"""A visitor without a browser: gradio's queue protocol over HTTP, as its front end speaks it."""

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from gradio_client.utils import apply_diff

API = "/gradio_api"
View = dict[str, Any]


class RefusedError(Exception):
    """The server answered with a status other than 200."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}: {text[:300]}")
        self.status = status


class FailedError(RuntimeError):
    """The server said that a function failed."""


class Resending(httpx.AsyncHTTPTransport):
    """HTTP as a browser speaks it: a request that met the end of a connection kept from before,
    and got no answer, is sent again. A server may close such a connection at any time; a connection
    made for the request must answer it.
    """

    #: Requests that were sent again.
    resent: int = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        while True:
            steps: list[str] = []

            async def note(step: str, _: object, steps: list[str] = steps) -> None:
                steps.append(step)

            request.extensions = {**request.extensions, "trace": note}
            try:
                return await super().handle_async_request(request)
            except (httpx.NetworkError, httpx.RemoteProtocolError):
                if any(step.startswith("connection.") for step in steps):
                    raise
                self.resent += 1


@dataclass(frozen=True, slots=True)
class Action:
    """A function of the page: its index, its inputs' ids and whether it goes by the queue."""

    index: int
    inputs: tuple[int, ...]
    queued: bool


@dataclass(frozen=True)
class Page:
    """What the page's configuration says: functions by the element that starts them, and values
    by component; components also by element id or label.
    """

    actions: Mapping[str, Action]
    values: Mapping[int, Any]
    names: Mapping[str, int]

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "Page":
        values, names = {}, {}
        for component in config["components"]:
            props = component["props"]
            values[component["id"]] = props.get("value")
            for name in (props.get("label"), props.get("elem_id")):
                if name:
                    names[name] = component["id"]
        by_id = {number: name for name, number in names.items()}
        actions = {}
        for entry in config["dependencies"]:
            action = Action(entry["id"], tuple(entry["inputs"]), entry["queue"])
            for target, event in entry["targets"]:
                actions[f"{by_id.get(target, target)}.{event}"] = action
        return cls(actions, values, names)

    def data(self, action: Action, changes: Mapping[str, Any]) -> list[Any]:
        """The inputs of a function: what the page begins with, but for `changes`."""
        changed = {self.names[name]: value for name, value in changes.items()}
        return [changed.get(number, self.values.get(number)) for number in action.inputs]


@dataclass
class Client:
    """One tab. Use it in `async with`; leaving is what closing the tab is."""

    address: str
    session: str = field(default_factory=lambda: secrets.token_hex(6))
    trace: list[str] = field(default_factory=list)

    async def __aenter__(self) -> "Client":
        # Shorter than the server keeps a connection: none is used as it is closed, but for a
        # machine that is late by seconds.
        limits = httpx.Limits(max_connections=None, keepalive_expiry=1.0)
        self._transport = Resending(verify=False, limits=limits)
        self.http = httpx.AsyncClient(
            base_url=self.address,
            headers={"Origin": self.address},
            timeout=httpx.Timeout(60, read=None),
            transport=self._transport,
            trust_env=False,
        )
        self._waiting: dict[str, asyncio.Queue[Any]] = {}
        self._open: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._stream: asyncio.Task[None] | None = None
        try:
            await self.http.get("/")  # for the cookie
            self.page = Page.read(_content(await self.http.get("/config")))
        except BaseException:
            await self.http.aclose()
            raise
        self._tasks.append(asyncio.create_task(self._alive()))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.http.aclose()

    @property
    def resent(self) -> int:
        """Requests that were sent again, as their connection had ended before they came."""
        return self._transport.resent

    async def press(self, what: str, **changes: Any) -> str:
        """Start a function that goes by the queue: its event's id. Raises RefusedError."""
        action = self.page.actions[what]
        return await self.post(self.body(action, self.page.data(action, changes)))

    def body(self, action: Action, data: Any) -> dict[str, Any]:
        return {
            "data": data,
            "event_data": None,
            "fn_index": action.index,
            "trigger_id": None,
            "session_hash": self.session,
        }

    async def post(self, body: Any) -> str:
        """Join gradio's queue with any body: the event's id. Raises RefusedError."""
        event = await self.join(body)
        self._waiting.setdefault(event, asyncio.Queue())
        self._open.add(event)
        if self._stream is None or self._stream.done():
            self._stream = asyncio.create_task(self._read())
            self._tasks.append(self._stream)
        return event

    async def join(self, body: Any) -> str:
        """Join gradio's queue, and leave it to the caller to read what comes."""
        # Not httpx's own JSON, which refuses NaN and halves of surrogate pairs.
        sent, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
        return _content(await self.http.post(f"{API}/queue/join", content=sent, headers=kind))[
            "event_id"
        ]

    async def call(self, what: str, **changes: Any) -> Any:
        """Call a function that does not go by the queue: its outputs. Raises RefusedError."""
        action = self.page.actions[what]
        body = self.body(action, self.page.data(action, changes))
        return _content(await self.http.post(f"{API}/run/predict", json=body)).get("data")

    async def outputs(self, event: str) -> AsyncIterator[list[Any]]:
        """The outputs of a function as they change. Raises FailedError if the server says that it
        failed, RuntimeError if the stream ends before.
        """
        queue = self._waiting.setdefault(event, asyncio.Queue())
        shown: list[Any] = []
        try:
            while True:
                message = await queue.get()
                if message is None:
                    raise RuntimeError("the stream of events ended before the event did")
                kind, output = message["msg"], message.get("output") or {}
                if kind not in ("process_generating", "process_completed"):
                    continue
                if not message.get("success", True):
                    raise FailedError(f"the server says: {output}")
                data = output.get("data") or []
                if kind == "process_completed":
                    if data and data[0] is not None and not shown:
                        yield data
                    return
                if shown:
                    shown = [apply_diff(a, b) for a, b in zip(shown, data, strict=True)]
                else:
                    shown = data
                yield shown
        finally:
            self._waiting.pop(event, None)

    async def race(self, what: str = "run.click", **changes: Any) -> AsyncIterator[View]:
        """The views of a race: of `run.click`, `continue.click` or `load.click`."""
        async for data in self.outputs(await self.press(what, **changes)):
            yield data[0]

    async def last(self, what: str = "run.click", **changes: Any) -> View:
        """The last view of a race."""
        shown: View = {}
        async for view in self.race(what, **changes):
            shown = view
        return shown

    async def stop(self) -> None:
        """Press Stop, which is answered at once."""
        await self.call("stop.click")

    def deaf(self) -> None:
        """Read no more, but leave the connection open: a laptop that has gone away."""
        if self._stream is not None:
            self._stream.cancel()

    async def _alive(self) -> None:
        """The connection by which the server knows that the tab is open."""
        with contextlib.suppress(httpx.HTTPError):
            url = f"{API}/heartbeat/{self.session}"
            async with self.http.stream("GET", url) as answer:
                async for _ in answer.aiter_raw():
                    pass

    async def _read(self) -> None:
        """Hand each event's messages to whoever waits for them, until nothing is awaited."""
        try:
            while await self._read_stream() and self._open:
                pass
        except httpx.HTTPError as error:
            self.trace.append(f"{type(error).__name__}: {error}")
        finally:
            for event in self._open:
                self._waiting[event].put_nowait(None)
            self._open.clear()

    async def _read_stream(self) -> bool:
        """Read one stream: whether the server closed it in good order."""
        session = {"session_hash": self.session}
        async with self.http.stream("GET", f"{API}/queue/data", params=session) as answer:
            async for line in answer.aiter_lines():
                if not line.startswith("data:"):
                    continue
                message = json.loads(line[5:])
                if message["msg"] == "close_stream":
                    return True
                event = message.get("event_id")
                if event:
                    self._waiting.setdefault(event, asyncio.Queue()).put_nowait(message)
                    if message["msg"] == "process_completed":
                        self._open.discard(event)
                elif message["msg"] == "unexpected_error":
                    self.trace.append(str(message))
        return False


async def disturbed(
    client: Client,
    moment: Callable[[View], bool],
    delay: float,
    act: Callable[[], Awaitable[None] | None],
    **form: Any,
) -> tuple[View, float]:
    """Run a race and `act` so many seconds after the first view of that `moment`: the last view,
    and the seconds from the act to it (0 if the race was over by then).
    """
    begun = asyncio.Event()
    acted = 0.0

    async def later() -> None:
        nonlocal acted
        await begun.wait()
        await asyncio.sleep(delay)
        acted = time.monotonic()
        done = act()
        if done is not None:
            await done

    acting, view = asyncio.create_task(later()), View()
    try:
        async for view in client.race(**form):
            if "alert" in view or moment(view):
                begun.set()
        ended = time.monotonic()
        begun.set()
        await acting
    finally:
        acting.cancel()
    return view, max(0.0, ended - acted)


def _content(answer: httpx.Response) -> Any:
    """What an answer holds. Raises RefusedError for a status other than 200."""
    if answer.status_code != 200:
        raise RefusedError(answer.status_code, answer.text)
    return answer.json()


def text_of(column: Mapping[str, Any]) -> str:
    """What a column has written."""
    rounds = map(json.loads, filter(None, column["rounds"].split("\n")))
    return "".join(piece for *_, spans in rounds for _, piece in spans)
