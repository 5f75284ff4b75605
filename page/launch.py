"""How the page is served: its looks, and what the server does and does not do."""

import os
from collections.abc import Sequence
from typing import Any

from gradio import themes

from backend.racing.hosts.host import Host
from page.components import asset
from page.layout import build


def serve(
    races: Host, engines: Sequence[str], models: Sequence[str], *, host: str, port: int, share: bool
) -> str:
    """Serve the page from a thread of its own: the address, once it answers."""
    _, address, shared = build(races, engines, models).launch(
        server_name="0.0.0.0" if "SPACE_ID" in os.environ else host,  # noqa: S104 (as Spaces ask)
        server_port=port,
        share=share,
        prevent_thread_lock=True,
        **launch_settings(),
    )
    return shared or address


def launch_settings() -> dict[str, Any]:
    """Keyword arguments for `launch` that belong to the page, whoever serves it."""
    # Fonts of the reader's own system: the page asks no other server for anything.
    fonts = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"]
    mono = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"]
    return {
        "theme": themes.Base(primary_hue="blue", neutral_hue="slate", font=fonts, font_mono=mono),
        "css": asset("page.css"),
        "footer_links": [],
        "run_history": False,
        "enable_monitoring": False,
        "strict_cors": True,
        "max_file_size": "1kb",  # nothing is ever uploaded
        "ssr_mode": False,
        "pwa": False,
        "mcp_server": False,
        "quiet": True,
    }
