"""The tab "Columns": which columns race, as text in the command line's words."""

from collections.abc import Sequence
from typing import Any

import gradio as gr

from backend.errors import DerbyError
from backend.strategies.column import default_column
from backend.strategies.registry import DEFAULT_COLUMNS
from backend.web.form import read_columns
from backend.web.view import View, idle
from page.components import QUIET, WORDS, Fields, Surroundings


def fill(tab: gr.Tab, around: Surroundings) -> Fields:
    lineup = gr.Textbox(
        "\n".join(DEFAULT_COLUMNS), lines=6, max_lines=12, elem_id="lineup", **WORDS["columns"]
    )

    def show(text: Any) -> Any:
        try:
            return idle(read_columns(text, {}, around.offer))
        except DerbyError:
            return gr.skip()

    lineup.change(show, lineup, around.board, **QUIET)
    return {"lineup": lineup}


def preview(names: Sequence[str] = DEFAULT_COLUMNS) -> View:
    """The usual columns, for a page on which nothing has run yet."""
    return idle([default_column(name) for name in names])
