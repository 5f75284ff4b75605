"""A visitor without a browser: calls of the page's functions, and the stream that follows."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from streams import Reader

View = dict[str, Any]


class RefusedError(Exception):
    """The server answered with a status other than 200."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}: {text[:300]}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Action:
    """A function of the page: its index and its inputs' ids."""

    index: int
    inputs: tuple[int, ...]


@dataclass(frozen=True)
class Page:
    """What the page's configuration says: functions by the element that starts them, or by their
    name in the API, and values by component; components also by element id or label.
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
            starts = [f"{by_id.get(each, each)}.{event}" for each, event in entry["targets"]]
            for name in starts or [str(entry["api_name"])]:
                if entry.get("backend_fn", True):
                    actions[name] = Action(entry["id"], tuple(entry["inputs"]))
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
    place: str = ""  # where a proxy says that it is; "": there is no proxy

    async def __aenter__(self) -> "Client":
        # A connection for each request: none is used that the server is just about to close.
        self.http = httpx.AsyncClient(
            base_url=self.address,
            headers={"Origin": self.address, **said_of(self.place)},
            timeout=httpx.Timeout(60, read=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            verify=False,  # noqa: S501 (plain HTTP; each certificate store takes 20 ms)
            trust_env=False,
        )
        try:
            await self.http.get("/")  # for the cookie
            self.page = Page.read(_content(await self.http.get("/config")))
        except BaseException:
            await self.http.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def call(self, what: str, **changes: Any) -> list[Any]:
        """Call a function of the page: its outputs. Raises RefusedError."""
        action = self.page.actions[what]
        return await self.post(self.body(action, self.page.data(action, changes)))

    def body(self, action: Action, data: Any) -> dict[str, Any]:
        return {
            "data": data,
            "fn_index": action.index,
            "trigger_id": None,
            "session_hash": self.session,
        }

    async def post(self, body: Any) -> list[Any]:
        """Send any body as a call: the outputs. Raises RefusedError."""
        # Not httpx's own JSON, which refuses NaN and halves of surrogate pairs.
        sent, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
        answer = await self.http.post("/gradio_api/run/predict", content=sent, headers=kind)
        return _content(answer)["data"]

    async def race(self, what: str = "ask.submit", **changes: Any) -> AsyncIterator[View]:
        """The views of a race: of `ask.submit`, `ask.play` or `load.click`. Raises
        httpx.HTTPError if the stream ends before the race does.
        """
        async for view in self.shown((await self.call(what, **changes))[0]):
            yield view

    async def shown(self, answer: View) -> AsyncIterator[View]:
        """The views of what this answer says has begun; or that it has not."""
        if "begun" not in answer:
            yield answer
            return
        async for name, view in Reader().events(self.http):
            if name == "race" and view["race"] >= answer["begun"]:
                yield view

    async def last(self, what: str = "ask.submit", **changes: Any) -> View:
        """The last view of a race."""
        shown: View = {}
        async for view in self.race(what, **changes):
            shown = view
        return shown

    async def stop(self) -> None:
        """Press Stop, which is answered at once."""
        (await self.http.post("/derby/stop")).raise_for_status()


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


def said_of(place: str) -> dict[str, str]:
    """What a proxy says of where a request comes from."""
    return {"X-Forwarded-For": place} if place else {}


def place_of(name: str) -> str:
    """An address of the visitor's own, by the number in the name."""
    number = int(name.rsplit(maxsplit=1)[-1])
    return f"10.{name.startswith('hostile'):d}.{number // 256 % 256}.{number % 256}"


def _content(answer: httpx.Response) -> Any:
    """What an answer holds. Raises RefusedError for a status other than 200."""
    if answer.status_code != 200:
        raise RefusedError(answer.status_code, answer.text)
    return answer.json()


def text_of(column: Mapping[str, Any]) -> str:
    """What a column has written."""
    rounds = map(json.loads, filter(None, column["rounds"].split("\n")))
    return "".join(piece for *_, spans in rounds for _, piece in spans)
