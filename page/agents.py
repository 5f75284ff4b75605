"""The page's tools for agents, by the Model Context Protocol. Results are text, and progress is
reported.

They need the package of requirements-mcp.txt. No session is kept between two calls, so nobody can
guess a session, use up all of them, or keep one after leaving. Each call is a visitor, who leaves
when the call ends.
"""

import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from typing import Any, Literal

from anyio import BrokenResourceError, ClosedResourceError
from pydantic import Field
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from backend.errors import DerbyError, explain
from backend.records.place import PROGRAM, versions
from backend.untrusted import Untrusted, Whole, read_as, read_json
from backend.web.api import Api, RaceCall, Report, explained, summed_up, terms
from backend.web.bodies import RefusedError, json_body, with_body
from backend.web.presence import Presence
from page.calls import require_shallow

#: Calls that agents of one address may have open.
MOST_CALLS = 8

_ABOUT = (
    "Races decoding strategies for language models (KV reuse, speculative decoding, lookahead, "
    "prompt lookup, grammars) on this machine: which is fastest, by how much, why, and whether the "
    "text changes. Call explain first if you do not know a name."
)


class Message(Untrusted):
    """A request or a notification of the protocol (JSON-RPC 2.0), with the fields that are checked
    here.
    """

    jsonrpc: Literal["2.0"]
    method: str
    id: int | str | None = None
    params: dict[str, Any] | None = None


class BenchmarkCall(Untrusted):
    """What an agent may ask of a benchmark."""

    prompts: list[str] = Field(description="The prompts; at least four.")
    max_new_tokens: Whole = Field(96, description="The most tokens per column.")


class ExplainCall(Untrusted):
    """What an agent may ask to have explained."""

    race: str = Field("", description="The text of a recorded race's file.")


#: Each tool: what it takes, and what it does.
TOOLS: Mapping[str, tuple[type[Untrusted], str]] = {
    "race": (
        RaceCall,
        (
            "Race decoding strategies on one prompt: which is fastest, by how much, why, and "
            "whether the text changes."
        ),
    ),
    "benchmark": (
        BenchmarkCall,
        (
            "Find the fastest strategy for prompts like these. Each candidate runs alone on every "
            "prompt. Takes minutes."
        ),
    ),
    "explain": (
        ExplainCall,
        (
            "Explain a recorded race: which strategy was fastest, by how much and why. Without a "
            "race: explain the strategies, their settings and the figures."
        ),
    ),
}


class Agents:
    """Answers agents. `app` takes their requests while `running` is entered, and raises DerbyError
    for what it refuses.
    """

    def __init__(self, api: Api, presence: Presence, request_bytes: int) -> None:
        """Raises ImportError where the package is not installed."""
        from mcp.server.lowlevel import Server
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        self._api = api
        self._presence = presence
        self._request_bytes = request_bytes
        self._open: Counter[str] = Counter()  # calls, by the address that they come from
        self._server = Server[Any, Any](
            "Decode Derby", dict(versions())[PROGRAM], instructions=_ABOUT
        )
        # The guard in front of it has looked at the host and the origin.
        self._manager = StreamableHTTPSessionManager(
            self._server, stateless=True, max_request_body_size=request_bytes
        )
        self._add_tools()
        self.app: ASGIApp = self._answer

    def running(self) -> AbstractAsyncContextManager[None]:
        return self._manager.run()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check that a call is complete, within the limits and a message of the protocol, and pass
        it on.
        """
        request = Request(scope, receive)
        body = await json_body(request, self._request_bytes)
        message = read_json(Message, body, "The call")
        require_shallow(message.params)
        with self._counted(request.client.host if request.client else ""):
            await self._manager.handle_request(*with_body(scope, body, receive), send)

    @contextmanager
    def _counted(self, address: str) -> Iterator[None]:
        """Count one more open call of an address. Raises RefusedError if it has too many."""
        if self._open[address] >= MOST_CALLS:
            raise RefusedError(
                f"Your address has {MOST_CALLS} open calls: call again when one has ended.",
                429,
            )
        self._open[address] += 1
        try:
            yield
        finally:
            self._open[address] -= 1
            self._open += Counter()  # which drops addresses without calls

    def _add_tools(self) -> None:
        from mcp import types

        async def listed(_: types.ListToolsRequest) -> types.ServerResult:
            tools = [
                types.Tool(name=name, description=about, inputSchema=call.model_json_schema())
                for name, (call, about) in TOOLS.items()
            ]
            return types.ServerResult(types.ListToolsResult(tools=tools))

        async def called(request: types.CallToolRequest) -> types.ServerResult:
            try:
                text = await self._call(request.params.name, request.params.arguments or {})
                wrong = False
            except Exception as error:
                text, wrong = self._api.public(explain(error)), True
            content: list[types.ContentBlock] = [types.TextContent(type="text", text=text)]
            return types.ServerResult(types.CallToolResult(content=content, isError=wrong))

        self._server.request_handlers[types.ListToolsRequest] = listed
        self._server.request_handlers[types.CallToolRequest] = called

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The answer of a tool. Raises DerbyError for a mistake that the agent can correct."""
        if name not in TOOLS:
            raise DerbyError(f"There is no tool {name!r:.60}; choose from {', '.join(TOOLS)}.")
        call, _ = TOOLS[name]
        asked: Any = read_as(call, arguments, "The call")
        if isinstance(asked, ExplainCall):
            return explained(await self._api.replay(asked.race)) if asked.race else terms()
        visitor = f"agent-{secrets.token_hex(16)}"
        try:
            asking = self._server.request_context.request
            address = asking.client.host if asking and asking.client else ""
            with self._presence.there(visitor, address=address):
                if isinstance(asked, BenchmarkCall):
                    found = self._api.benchmark(visitor, asked.prompts, asked.max_new_tokens)
                    return summed_up(await self._last(found))
                return explained(
                    await self._last(self._api.race(visitor, asked.model_dump(exclude_unset=True)))
                )
        finally:
            self._api.leave(visitor)  # nobody can ask for it any more

    async def _last(self, reports: AsyncIterator[Report]) -> Report:
        """The last of the reports; the earlier ones are sent to the agent as progress. Raises
        DerbyError if the agent hangs up meanwhile, which the protocol's package may notice later
        than this method.
        """
        context, last, count = self._server.request_context, Report(), 0
        token = context.meta.progressToken if context.meta else None
        async for last in reports:
            count += 1
            if token is not None:
                try:
                    await context.session.send_progress_notification(
                        token, count, None, last["status"], str(context.request_id)
                    )
                except (BrokenResourceError, ClosedResourceError) as error:
                    raise DerbyError("The agent hung up.") from error
        return last


class NoAgents:
    """Stands for the tools of a page that offers none."""

    app: ASGIApp | None = None

    def running(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()
