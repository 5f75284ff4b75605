"""The tab "History": the races that this browser keeps. The server keeps none of them."""

from typing import Any

import gradio as gr

from backend.web.assets import asset
from backend.web.controller import Controller
from backend.web.view import View
from page.components import BARE, QUIET
from page.modules import starting


def fill(controller: Controller) -> None:
    shown = gr.HTML(
        None,
        html_template=asset("history.html"),
        js_on_load=starting("history.js"),
        elem_id="history",
        **BARE,
    )

    # In a thread, as gradio calls what is not async: it may take some time.
    def compare(asked: Any) -> View:
        return controller.beside(asked.get("links") if isinstance(asked, dict) else None)

    shown.input(compare, shown, shown, **QUIET)
