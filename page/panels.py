"""What stands around the board: why a race went as it did, the code of its columns for production,
and the past races of this browser.
"""

from typing import Any

import gradio as gr

from page.components import QUIET, in_browser, plain
from page.race import Run

NO_RACE = "Run a race to get the code of its columns."
NO_CODE = "No library does what these columns did."

#: The columns of the table of past races, and their widths in pixels.
HISTORY = {"when": 170, "prompt": 260, "columns": 220, "model and settings": 220, "result": 320}


def why() -> list[Any]:
    """Sentences, a table of figures, a plot and its legend, which `derby.why` of assets/page.js
    fills from the drawing on the board.
    """
    with gr.Accordion("Why?", open=False):
        reasons = plain(elem_id="reasons")
        figures = gr.Dataframe(
            interactive=False, wrap=True, max_height=900, show_label=False, elem_id="figures"
        )
        curve = gr.LinePlot(
            x="rows",
            y="times",
            color="of",
            x_title="tokens that a pass checks",
            y_title="times as long as a pass over one",
            colors_in_legend=[],  # a legend of its own is cut off on a phone
            height=280,
            show_label=False,
            elem_id="curve",
        )
        series = plain(show="derby.series", elem_id="series")
    return [reasons, figures, curve, series]


def production(run: gr.State) -> tuple[dict[str, Any], gr.Button, gr.Textbox]:
    """The code of the columns of `run`, the race on the board, for the libraries that have it.
    Returns the arguments of the event that shows another race's code, the button that races it,
    and the column that it is, as a line of a line-up.
    """
    with gr.Accordion("Code for other columns and libraries", open=False, elem_id="code-panel"):
        with gr.Row():
            column = gr.Dropdown([], label="Column", elem_id="code-column")
            library = gr.Dropdown([], label="Library", elem_id="code-library")
        note = plain(elem_id="code-note")
        code = plain("pre", elem_id="code")
        with gr.Row():
            copy = gr.Button("Copy", size="sm", visible=False, elem_id="code-copy")
            add = gr.Button("Race this code", size="sm", visible=False, elem_id="code-race")
        raced = gr.Textbox(visible=False)

    def show(run: Run | None, index: int | None = None, chosen: str = "") -> list[Any]:
        if run is None or not run.over or not (every := run.snippets):
            sentence = NO_CODE if run is not None and run.over else NO_RACE
            nothing, hidden = gr.Dropdown([], value=None), gr.Button(visible=False)
            return [nothing, nothing, sentence, "", hidden, hidden, ""]
        names = [(run.board.names[i], i) for i in every]
        index = index if index in every else next(iter(every))
        chosen = chosen if chosen in every[index] else next(iter(every[index]))
        snippet = every[index][chosen]
        return [
            gr.Dropdown(names, value=index),
            gr.Dropdown(list(every[index]), value=chosen),
            snippet.note,
            snippet.code,
            gr.Button(visible=True),
            gr.Button(visible=snippet.column is not None and snippet.raced is None),
            str(snippet.column or ""),
        ]

    outputs = [column, library, note, code, copy, add, raced]
    column.input(show, [run, column], outputs, **QUIET)
    library.input(show, [run, column, library], outputs, **QUIET)
    copy.click(None, code, None, js=in_browser("copy"), **QUIET)
    return {"fn": show, "inputs": run, "outputs": outputs, **QUIET}, add, raced


def past_races() -> gr.BrowserState:
    """The past races, which the browser has."""
    return gr.BrowserState([], storage_key="decode-derby-history", secret="decode-derby")  # noqa: S106


def history(tab: gr.Tab, races: gr.BrowserState) -> tuple[Any, gr.Textbox]:
    """Lay the list out. Returns the event of a click on a row, and the record that it opens."""
    gr.Markdown("The last 20 races of this browser. Click a row to open its race.")
    table = gr.Dataframe(
        [],
        headers=list(HISTORY),
        column_widths=list(HISTORY.values()),
        interactive=False,
        wrap=True,
        show_label=False,
        elem_id="races",
    )
    clear = gr.Button("Clear", size="sm")
    clear.click(None, races, races, js=in_browser("clear"), **QUIET)
    rows = in_browser("rows", *HISTORY)
    gr.on([races.change, tab.select], None, races, table, js=rows, **QUIET)
    place, record = gr.Number(visible=False), gr.Textbox(visible=False)

    def place_of(row: gr.SelectData) -> int:
        return row.index[0]

    clicked = table.select(place_of, None, place, **QUIET)
    return clicked.then(None, [place, races], record, js=in_browser("record"), **QUIET), record
