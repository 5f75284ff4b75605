"""How the page is served: its theme, and what the server does and does not do."""

import os
import re
from collections.abc import Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from gradio import Blocks, themes
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import Route

from backend.errors import DerbyError
from backend.limits import Limits
from backend.racing.hosts.host import Host
from backend.web.assets import ASSETS, asset
from backend.web.controller import Controller
from backend.web.presence import Presence
from backend.web.theme import theme_values
from page.agents import Agents, NoAgents
from page.calls import Functions
from page.guard import HEALTH, Guard
from page.layout import build
from page.modules import ROUTE
from page.site import Site, site_of
from page.stream import routes
from page.uncollected import forget

# Else gradio keeps ten thousand events, and makes a table of all of them after each.
os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "1")

#: Seconds between two looks of gradio's queue for something to do. Its own are a thousandth: a page
#: that nobody uses took 3.9 % of a core with them, 1.0 % with these.
LOOK = 0.05

#: In this order: a later one may say more of what an earlier one began.
STYLES = ("page.css", "replay.css", "benchmark.css", "history.css")

#: Comments and white space, which browsers do not need.
_SPARE = re.compile(r"/\*.*?\*/\s*|(?<=[{};,])\s+", re.DOTALL)


def serve(
    races: Host,
    engines: Sequence[str],
    models: Sequence[str],
    limits: Limits,
    *,
    host: str,
    port: int,
    share: bool,
    public_hosts: Sequence[str] = (),
    proxies: Sequence[str] = (),
    mcp: bool = False,
) -> str:
    """Serve the page from a thread of its own, and return its address once it answers. `mcp`: with
    tools for agents. `proxies`: addresses or networks whose X-Forwarded-For is trusted.

    Raises DerbyError if the port is taken, or if the package for the tools is missing.
    """
    space = "SPACE_ID" in os.environ
    bound = "0.0.0.0" if space else host.strip("[]")  # noqa: S104 (as Spaces ask)
    site = site_of(bound, tuple(public_hosts), os.environ.get("SPACE_HOST", ""), space=space)
    presence = Presence(by_address=bool(proxies))
    # uvicorn reads it, and would believe whatever runs on this machine.
    os.environ["FORWARDED_ALLOW_IPS"] = ",".join(proxies)
    demo, controller, api = build(races, engines, models, limits, presence)
    demo.queue(api_open=False)
    demo._queue.sleep_when_free = LOOK  # noqa: SLF001 (without it, the page is only less idle)
    controller.leavers.append(partial(forget, demo._queue))  # noqa: SLF001 (it forgets nobody itself)
    agents = Agents(api, presence, limits.request_bytes) if mcp else NoAgents()
    try:
        _, address, shared = demo.launch(
            server_name=f"[{bound}]" if ":" in bound else bound,
            server_port=port,
            share=share,
            prevent_thread_lock=True,
            **launch_settings(demo, controller, site, limits, presence, agents, races),
        )
    except OSError as error:  # as gradio says that the port was taken in the meantime
        raise DerbyError(
            f"Nothing can be served at {host}, port {port}: choose another."
        ) from error
    if shared:
        site.add(urlsplit(shared).netloc)
        demo.share = False  # else the page would load its scripts from another server
    return shared or address


def functions_of(demo: Blocks) -> Functions:
    """The functions that a browser may call, by the address at which they are called: queued, or at
    once.
    """
    fns = {number: fn for number, fn in demo.fns.items() if fn.fn is not None}
    return {
        address: {n: len(fn.inputs) for n, fn in fns.items() if bool(fn.queue) is queued}
        for address, queued in (
            ("/gradio_api/queue/join", True),
            ("/gradio_api/run/predict", False),
        )
    }


def launch_settings(
    demo: Blocks,
    controller: Controller,
    site: Site,
    limits: Limits,
    presence: Presence,
    agents: Agents | NoAgents,
    races: Host,
) -> dict[str, Any]:
    """The page's keyword arguments for `launch`, however it is served."""
    # Fonts of the reader's own system: the page asks no other server for anything.
    fonts = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"]
    guarded = limits.request_bytes, presence, agents.app
    mono = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"]
    return {
        "theme": themes.Base(
            primary_hue="blue", neutral_hue="slate", font=fonts, font_mono=mono
        ).set(
            **theme_values(),
            body_background_fill_dark="*neutral_950",
            color_accent="*link_text_color",
        ),
        "favicon_path": str(ASSETS / "favicon.svg"),
        "css": _SPARE.sub("", "".join(map(asset, STYLES))),
        "footer_links": ["api"],
        "run_history": False,
        "enable_monitoring": False,
        "strict_cors": True,
        "max_file_size": "1kb",  # nothing is ever uploaded
        "ssr_mode": False,
        "pwa": False,
        "mcp_server": False,
        "quiet": True,
        "state_session_capacity": limits.visitors,  # some 0.13 MB each
        "app_kwargs": {
            "middleware": [Middleware(Guard, site, functions_of(demo), *guarded)],
            "routes": [
                *routes(controller),
                ROUTE,
                # It answers at all: "preparing" says what races still wait for, "" for nothing.
                Route(HEALTH, lambda _: JSONResponse({"preparing": races.preparing})),
            ],
            "lifespan": lambda _: agents.running(),
            "docs_url": None,
            "redoc_url": None,
            "openapi_url": None,
        },
    }
