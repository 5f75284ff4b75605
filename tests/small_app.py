"""A small app of gradio's behind the page's middleware for guests: `small_app.py [ROOT_PATH]`. Its
race lasts until `finish` is called, if its prompt begins with "endless".
"""

import asyncio
import sys
from collections.abc import AsyncIterator

import gradio as gr
from starlette.middleware import Middleware

from page.guests import LINE, Guests

RUNNING: list[str] = []


async def race(prompt: str) -> AsyncIterator[str]:
    """Race."""
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


with gr.Blocks() as demo:
    value, output = gr.Textbox(), gr.Textbox()
    gr.Button().click(race, value, output, concurrency_id=LINE, concurrency_limit=1)
    for function in (running, hello, finish):
        gr.Button().click(function, value, output)
    demo.load(lambda: "loaded", None, output, queue=False)
demo.queue(api_open=False)
_, address, _ = demo.launch(
    prevent_thread_lock=True,
    quiet=True,
    mcp_server=True,
    ssr_mode=False,
    root_path=sys.argv[1] if len(sys.argv) > 1 else "",
    app_kwargs={"middleware": [Middleware(Guests)]},
)
sys.stdout.write(f"{address}\n")
sys.stdout.flush()
demo.block_thread()
