"""What stands around the board: why a race went as it did, the code of its columns for production,
and the past races of this browser.
"""

from typing import Any

import gradio as gr

from backend.errors import DerbyError
from backend.export.production import LIBRARIES, Snippet, snippet, usual, usual_library
from page.components import QUIET, Fields, in_browser, plain
from page.race import Run

NO_RACE = "Run a race to get the code of its columns."

#: The columns of the table of past races, and their widths in pixels.
HISTORY = {
    "when": 180,
    "prompt": 300,
    "fastest": 120,
    "speed-up": 100,
    "temperature": 130,
    "seed": 80,
    "tokens": 90,
}


def why() -> list[Any]:
    """Sentences, a table of figures, a plot and its legend, which `derby.why` of assets/page.js
    fills from the drawing on the board.
    """
    with gr.Accordion("Why?", open=False):
        reasons = plain("{{#each value}}<p>{{this}}</p>{{/each}}", [], elem_id="reasons")
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
        key = "{{#each value}}<span style='--of: {{color}}'>{{of}}</span> {{/each}}"
        series = plain(key, [], elem_id="series")
    return [reasons, figures, curve, series]


def production(run: gr.State, lineup: gr.Textbox) -> dict[str, Any]:
    """A column of `run`, the race on the board, as code for a library, which can be raced like any
    other column. Returns the arguments of the event that shows another race's code.
    """
    with gr.Accordion("Use in production", open=False):
        with gr.Row():
            column = gr.Dropdown([], label="Column", elem_id="code-column")
            library = gr.Dropdown(list(LIBRARIES), label="Library", elem_id="code-library")
        note = plain(elem_id="code-note")
        code = gr.Code(
            language=None,
            interactive=False,
            wrap_lines=True,
            label="Code",
            elem_id="code",
        )
        add = gr.Button("Race this code", size="sm", visible=False, elem_id="code-race")

    def code_of(run: Run, index: int, library: str) -> Snippet:
        return snippet(run.board, index, run.race.request, run.race.target, library)

    def names_of(run: Run) -> list[str]:
        return [run.board.name(i) for i in range(len(run.race.columns))]

    def show(run: Run | None, column: str | None = None, library: str = "") -> list[Any]:
        hidden = [gr.Code(visible=False), gr.Button(visible=False)]
        if run is None or not run.board.ended:
            return [gr.skip(), gr.skip(), NO_RACE, *hidden]
        names, request, target = names_of(run), run.race.request, run.race.target
        index = names.index(column) if column in names else usual(run.board, request, target)
        library = library or usual_library(run.board, index, request, target)
        library = library or next(iter(LIBRARIES))
        choices = [gr.Dropdown(names, value=names[index]), gr.Dropdown(value=library)]
        try:
            written = code_of(run, index, library)
        except DerbyError as error:
            return [*choices, str(error), *hidden]
        code = gr.Code(written.code, visible=bool(written.code))
        button = gr.Button(visible=written.column is not None and not written.raced)
        return [*choices, f"{written.raced} {written.note}".strip(), code, button]

    def race(run: Run, column: str, library: str, lineup: str) -> tuple[str, str]:
        written = code_of(run, names_of(run).index(column), library)
        return f"{lineup.rstrip()}\n{written.column}", "It is a column of the next race."

    outputs = [column, library, note, code, add]
    column.input(show, [run, column], outputs, **QUIET)
    library.input(show, [run, column, library], outputs, **QUIET)
    add.click(race, [run, column, library, lineup], [lineup, note], **QUIET)
    return {"fn": show, "inputs": run, "outputs": outputs, **QUIET}


def past_races() -> gr.BrowserState:
    """The past races, which the browser has."""
    return gr.BrowserState([], storage_key="decode-derby-races", secret="decode-derby")  # noqa: S106


def history(
    tab: gr.Tab, races: gr.BrowserState, run: gr.State, board: gr.HTML, fields: Fields
) -> Any:
    """Lay the list out, and have a click on a row draw that race again and fill in its settings.
    Returns that event.
    """
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
    place, inputs = gr.Number(visible=False), list(fields.values())

    def place_of(row: gr.SelectData) -> tuple[int, None]:
        return row.index[0], None  # the race on the board is none that this server ran

    script = in_browser("open", *fields)
    clicked = table.select(place_of, None, [place, run], **QUIET)
    return clicked.then(None, [place, races, board, *inputs], [board, *inputs], js=script, **QUIET)
