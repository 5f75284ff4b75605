"""Below the board: the race on show as a link or a file, and the inside of its steps."""

from typing import Any

import gradio as gr

from backend.web.assets import asset
from backend.web.controller import Controller
from backend.web.view import View
from page.components import BARE, QUIET, visitor_of
from page.modules import starting


def fill(controller: Controller) -> None:
    inspector = gr.HTML(
        None,
        html_template=asset("inspector.html"),
        js_on_load=starting("inspector.js"),
        elem_id="inspector",
        **BARE,
    )
    row = gr.HTML(
        None,
        html_template=asset("export.html"),
        js_on_load=starting("export.js"),
        elem_id="export",
        **BARE,
    )

    # In a thread, as gradio calls what is not async: it may take some time.
    def export(request: gr.Request, asked: Any) -> View:
        return controller.export(visitor_of(request), asked)

    def inspect(request: gr.Request, asked: Any) -> View:
        return controller.inspect(visitor_of(request), asked)

    inspector.input(inspect, inspector, inspector, **QUIET)
    row.input(export, row, row, **QUIET)
