"""A race that has ended: its files and the inside of its steps below the board."""

from typing import Any

import gradio as gr

from backend.web.controller import Controller
from backend.web.view import View
from page.components import QUIET, own, visitor_of

# In threads, as gradio calls what is not async: each may take some time.


def fill_below(controller: Controller) -> None:
    inspector, row = own("inspector"), own("export", layout="")  # its row is the board's

    def export(request: gr.Request, asked: Any) -> View:
        return controller.export(visitor_of(request), asked)

    def inspect(request: gr.Request, asked: Any) -> View:
        return controller.inspect(visitor_of(request), asked)

    inspector.input(inspect, inspector, inspector, **QUIET)
    row.input(export, row, row, **QUIET)
