"""An app of gradio's that draws a file's drawing on the board: `board_app.py FILE`."""

import json
import sys
import threading
from pathlib import Path
from typing import Any

import gradio as gr

from page.components import board, plain

FILE = Path(sys.argv[1])

#: Of the page's own.
SCRIPT = Path(__file__).resolve().parents[2] / "assets" / "page.js"


def drawing() -> Any:
    return json.loads(FILE.read_text(encoding="utf-8"))


def asked(data: gr.EventData) -> str:
    return data.name


def opened(data: gr.EventData) -> str:
    return data.record


with gr.Blocks() as demo:
    screen, event = board(drawing(), elem_id="board"), gr.Textbox(elem_id="event", max_lines=2)
    text = plain(elem_id="plain")
    gr.Button("Draw", elem_id="draw").click(
        lambda: (drawing(), drawing()["status"]), None, [screen, text]
    )
    screen.submit(lambda: "again", None, event)
    screen.select(lambda: "next", None, event)
    screen.download(asked, None, event)
    screen.input(opened, None, event)

head = f"<script>{SCRIPT.read_text(encoding='utf-8')}</script>"
_, address, _ = demo.launch(prevent_thread_lock=True, quiet=True, ssr_mode=False, head=head)
sys.stdout.write(f"{address}\n")
sys.stdout.flush()
threading.Event().wait()
