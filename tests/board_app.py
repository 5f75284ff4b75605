"""The board in an app of its own, which draws what a file holds: `board_app.py DRAWING.json`."""

import json
import sys
from pathlib import Path
from typing import Any

import gradio as gr

from page.components import board


def drawing() -> Any:
    return json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))


with gr.Blocks() as demo:
    gr.Markdown("# A title")
    drawn, event = board(drawing(), elem_id="board"), gr.Textbox(label="event", elem_id="event")
    draw = gr.Button("Draw", elem_id="draw").click(drawing, None, drawn, show_progress="hidden")
    draw.then(lambda: drawing()["phase"], None, event)
    gr.Button("Read", elem_id="read").click(lambda value: value["phase"], drawn, event)
    drawn.submit(lambda: "again", None, event)
    drawn.input(lambda: "opened", None, event)
_, address, _ = demo.launch(prevent_thread_lock=True, quiet=True)
sys.stdout.write(f"{address}\n")
sys.stdout.flush()
demo.block_thread()
