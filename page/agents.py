"""The page's tools for agents, by the Model Context Protocol: results are text, with progress.

Needs the package of requirements-mcp.txt.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp

from backend.errors import DerbyError, explain
from backend.strategies.registry import DEFAULT_COLUMNS
from backend.web.api import Api, Report, explained, summed_up, terms
from backend.web.presence import Presence
from page.guard import AGENTS
from page.identity import session_of, visitor_of

if TYPE_CHECKING:
    from mcp.server.fastmcp import Context

#: Sessions of agents at one time.
MOST_SESSIONS = 100

_ABOUT = (
    "Races decoding strategies for language models (KV reuse, speculative decoding, lookahead, "
    "prompt lookup, grammars) on this machine: which is faster, by how much, why, and whether the "
    "text changes. Call explain first if a name is unknown."
)


class Agents:
    """Answers agents. `app` takes their requests while `running` is entered."""

    def __init__(self, api: Api, presence: Presence, request_bytes: int) -> None:
        """Raises DerbyError where the package is not installed."""
        try:
            from mcp.server.fastmcp import FastMCP
            from mcp.server.transport_security import TransportSecuritySettings
        except ImportError as error:
            raise DerbyError(
                "Tools for agents need the package mcp: install it with "
                "`.venv/bin/python -m pip install -r requirements-mcp.txt`, or leave --mcp out."
            ) from error
        self._api = api
        self._presence = presence
        # The guard in front of it has looked at the host and the origin.
        open_door = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        self._server = FastMCP[Any](
            "Decode Derby",
            _ABOUT,
            log_level="WARNING",
            streamable_http_path=AGENTS,
            max_request_body_size=request_bytes,
            max_sessions=MOST_SESSIONS,
            transport_security=open_door,
        )
        self._add_tools()
        self.app: ASGIApp = self._server.streamable_http_app()

    def running(self) -> AbstractAsyncContextManager[None]:
        return self._server.session_manager.run()

    def _add_tools(self) -> None:
        from mcp.server.fastmcp import Context
        from mcp.server.fastmcp.exceptions import ToolError

        async def race(
            context: Context,  # pyright: ignore[reportMissingTypeArgument]
            prompt: str,
            columns: list[str] = list(DEFAULT_COLUMNS),  # noqa: B006 (read alone)
            max_new_tokens: int = 96,
            temperature: float = 0.0,
            seed: int = 0,
            model: str = "",
        ) -> str:
            """Race decoding strategies on one prompt, and tell who is faster, by how much, why, and
            whether the text changed. Columns are written strategy:setting=value,...; kv is the
            baseline.
            """
            asked = {
                "prompt": prompt,
                "columns": columns,
                "max_new_tokens": max_new_tokens,
                "temperature": temperature,
                "seed": seed,
                "model": model,
            }
            return explained(await self._last(context, lambda who: self._api.race(who, asked)))

        async def benchmark(
            context: Context,  # pyright: ignore[reportMissingTypeArgument]
            prompts: list[str],
            max_new_tokens: int = 96,
        ) -> str:
            """Find the strategy to use on prompts like these: each that may pay runs alone on every
            prompt, of which there should be four or more. Takes minutes.
            """
            ask = self._api.benchmark
            found = await self._last(context, lambda who: ask(who, prompts, max_new_tokens))
            return summed_up(found)

        async def explain_race(race: str = "") -> str:
            """Explain a recorded race: who was faster, by how much and why. `race` is a link to
            it, or the text of its file. Without one: the strategies, their settings, and figures.
            """
            try:
                return explained(await self._api.replay(race)) if race else terms()
            except Exception as error:
                raise ToolError(self._api.public(explain(error))) from error

        self._server.add_tool(race)
        self._server.add_tool(benchmark)
        self._server.add_tool(explain_race, "explain")

    async def _last(
        self,
        context: "Context[Any, Any, Any]",
        ask: Callable[[str], AsyncIterator[Report]],
    ) -> Report:
        """The last of the reports; of the others the agent is told. Raises ToolError."""
        from mcp.server.fastmcp.exceptions import ToolError

        request = context.request_context.request
        session = request.headers.get("mcp-session-id", "") if request is not None else ""
        visitor, report, count = visitor_of(session_of("", f"mcp {session}")), Report(), 0
        try:
            with self._presence.there(visitor):  # the agent waits
                async for report in ask(visitor):
                    count += 1
                    await context.report_progress(count, None, report["status"])
        except Exception as error:
            raise ToolError(self._api.public(explain(error))) from error
        return report


class NoAgents:
    """Of a page that offers no tools."""

    app: ASGIApp | None = None

    def running(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()
