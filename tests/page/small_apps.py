"""Small apps of gradio's: `small_apps.py guests` has a race behind the page's middleware, once
below a path of a proxy's, and `small_apps.py board FILE` draws the file's drawing on the board.
"""

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import gradio as gr
from starlette.middleware import Middleware

from page.components import board, plain
from page.guests import Guests

#: Of the page's own.
SCRIPT = Path(__file__).resolve().parents[2] / "assets" / "page.js"

RUNNING: list[str] = []


async def race(prompt: str) -> AsyncIterator[str]:
    """Race; where the prompt begins with "endless", until `finish` is called."""
    RUNNING.append(prompt)
    yield f"{prompt} runs"
    while prompt.startswith("endless") and RUNNING:
        await asyncio.sleep(0.01)
    RUNNING.clear()
    yield f"{prompt} ended"


def running(_: str) -> str:
    return "".join(RUNNING)


def hello(name: str) -> str:
    return f"hello {name}"


def finish(_: str) -> str:
    RUNNING.clear()
    return ""


def guests(root_path: str) -> str:
    """Launch the app that guests meet; its address."""
    with gr.Blocks() as demo:
        value, output = gr.Textbox(), gr.Textbox()
        gr.Button().click(race, value, output)
        for function in (running, hello, finish):
            gr.Button().click(function, value, output)
        demo.queue(api_open=False)
    middleware = {"middleware": [Middleware(Guests)]}
    return launched(demo, mcp_server=True, root_path=root_path, app_kwargs=middleware)


def drawings(file: Path) -> str:
    """Launch the board; its address."""

    def drawing() -> Any:
        return json.loads(file.read_text(encoding="utf-8"))

    with gr.Blocks() as demo:
        screen, event = board(drawing(), elem_id="board"), gr.Textbox(elem_id="event", max_lines=2)
        text = plain(elem_id="plain")
        gr.Button("Draw", elem_id="draw").click(
            lambda: (drawing(), drawing()["status"]), None, [screen, text]
        )
        screen.submit(lambda: "again", None, event)
        screen.select(lambda: "next", None, event)

        def asked(data: gr.EventData) -> str:
            return data.name

        def opened(data: gr.EventData) -> str:
            return data.record

        screen.download(asked, None, event)
        screen.input(opened, None, event)
    return launched(demo, head=f"<script>{SCRIPT.read_text(encoding='utf-8')}</script>")


def launched(demo: gr.Blocks, **options: Any) -> str:
    _, address, _ = demo.launch(prevent_thread_lock=True, quiet=True, ssr_mode=False, **options)
    return address


what, *arguments = sys.argv[1:]
addresses = [guests(path) for path in ("", "/derby")] if what == "guests" else None
sys.stdout.write(" ".join(addresses or [drawings(Path(arguments[0]))]) + "\n")
sys.stdout.flush()
threading.Event().wait()
