"""The last races of this browser, which alone has them."""

from typing import Any

import gradio as gr

from page.components import QUIET, Fields, in_browser

#: The table's columns and their widths in pixels.
HEADERS = {
    "when": 180,
    "prompt": 300,
    "winner": 120,
    "speed-up": 100,
    "temperature": 130,
    "seed": 80,
    "tokens": 90,
}


def past_races() -> gr.BrowserState:
    """The past races, which the browser has."""
    return gr.BrowserState([], storage_key="decode-derby-races", secret="decode-derby")  # noqa: S106


def fill(tab: gr.Tab, races: gr.BrowserState, run: gr.State, board: gr.HTML, fields: Fields) -> Any:
    """Lay the list out, and have a click on a row draw that race again and fill in its settings.
    Returns that event.
    """
    gr.Markdown("The last 20 races of this browser. Click a row to open its race.")
    table = gr.Dataframe(
        [],
        headers=list(HEADERS),
        column_widths=list(HEADERS.values()),
        interactive=False,
        wrap=True,
        show_label=False,
        elem_id="races",
    )
    clear = gr.Button("Clear", size="sm")
    clear.click(None, races, races, js=in_browser("clear"), **QUIET)
    rows = in_browser("rows", *HEADERS)
    gr.on([races.change, tab.select], None, races, table, js=rows, **QUIET)
    place, inputs = gr.Number(visible=False), list(fields.values())

    def choose(chosen: gr.SelectData) -> tuple[int, None]:
        return chosen.index[0], None  # the race on the board is none that this server ran

    script = in_browser("open", *fields)
    chosen = table.select(choose, None, [place, run], **QUIET)
    return chosen.then(None, [place, races, board, *inputs], [board, *inputs], js=script, **QUIET)
