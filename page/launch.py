"""How the page is served: its theme, and what the server does and does not do."""

import os
from pathlib import Path

from gradio import Blocks, themes
from starlette.middleware import Middleware

from page.guests import Guests

ASSETS = Path(__file__).resolve().parent.parent / "assets"

# Else gradio keeps ten thousand events, and makes a table of all of them after each.
os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "1")

#: Seconds between two looks of gradio's queue for something to do. Its own are a thousandth: a page
#: that nobody uses took 3.9 % of a core with them, 1.0 % with these.
LOOK = 0.05

#: The theme's colours, light and dark: blue and slate with enough contrast for small text.
COLOURS = {
    "body_text_color": ("#1b2430", "#e8edf4"),
    "body_text_color_subdued": ("#566273", "#a3afbf"),
    "block_info_text_color": ("#566273", "#a3afbf"),
    "block_label_text_color": ("#566273", "#a3afbf"),
    "input_placeholder_color": ("#566273", "#a3afbf"),
    "border_color_primary": ("#d5dbe3", "#354152"),
    "background_fill_primary": ("#ffffff", "#1a222e"),
    "background_fill_secondary": ("#f5f7fa", "#121924"),
    "body_background_fill": ("#ffffff", "#0c1118"),
    "error_text_color": ("#b3261e", "#ff8a80"),
    "link_text_color": ("#0058a3", "#8ecbff"),
    "button_primary_background_fill": ("#0058a3", "#0a66b7"),
    "button_primary_text_color": ("#ffffff", "#ffffff"),
}

#: Events of gradio's that go on beside those that wait in our line.
THREADS = 40

#: Sessions whose last race stays in memory.
SESSIONS = 200


def serve(demo: Blocks, host: str, port: int, waiting: int, root: str = "", *, share: bool) -> str:
    """Serve the page from a thread of its own, with room for so many waiting races, below the path
    `root` of a proxy's, and return its address.
    """
    bound = "0.0.0.0" if "SPACE_ID" in os.environ else host.strip("[]")  # noqa: S104 (as Spaces ask)
    demo.queue(api_open=False)
    demo._queue.sleep_when_free = LOOK  # noqa: SLF001 (without it, the page is only less idle)
    # Fonts of the reader's own system: the page asks no other server for anything.
    fonts = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"]
    mono = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"]
    theme = themes.Base(primary_hue="blue", neutral_hue="slate", font=fonts, font_mono=mono)
    light = {name: colours[0] for name, colours in COLOURS.items()}
    dark = {f"{name}_dark": colours[1] for name, colours in COLOURS.items()}
    _, address, shared = demo.launch(
        server_name=f"[{bound}]" if ":" in bound else bound,
        server_port=port,
        share=share,
        prevent_thread_lock=True,
        root_path=root or None,
        theme=theme.set(**light, **dark, color_accent="*link_text_color"),
        favicon_path=ASSETS / "favicon.svg",
        css_paths=ASSETS / "page.css",
        head=f"<script>{(ASSETS / 'page.js').read_text(encoding='utf-8')}</script>",
        footer_links=["api"],
        run_history=False,
        enable_monitoring=False,
        strict_cors=True,
        max_file_size=1,  # nothing is ever uploaded
        ssr_mode=False,
        pwa=False,
        mcp_server=True,
        quiet=True,
        max_threads=waiting + THREADS,
        state_session_capacity=SESSIONS,
        app_kwargs={"middleware": [Middleware(Guests)], "docs_url": None, "redoc_url": None},
    )
    if demo.mcp_server_obj:  # else gradio forgets who asked, and a call that is cancelled runs on
        demo.mcp_server_obj.manager.stateless = False
    return shared or address
