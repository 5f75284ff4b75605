"""The accordion "Use in production": a column of the race as code for a library, which can be
raced like any other column.
"""

from typing import Any

import gradio as gr

from backend.errors import DerbyError
from backend.export.production import LIBRARIES, snippet, usual, usual_library
from page.components import QUIET, plain
from page.race import Run

NO_RACE = "Run a race to get the code of its columns."


def fill(run: gr.State, lineup: gr.Textbox) -> dict[str, Any]:
    """Lay it out and connect it; `run` is the race on show. Returns the arguments of the event
    that shows another race's code.
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

    def show(run: Run | None, chosen: str | None = None, wanted: str | None = None) -> list[Any]:
        if run is None or not run.board.ended:
            return [gr.skip(), gr.skip(), NO_RACE, gr.Code(visible=False), gr.Button(visible=False)]
        race, names = run.race, [run.board.name(i) for i in range(len(run.race.columns))]
        request, target = race.request, race.target
        index = names.index(chosen) if chosen in names else usual(run.board, request, target)
        best = "" if wanted else usual_library(run.board, index, request, target)
        name = wanted or best or next(iter(LIBRARIES))
        columns, libraries = gr.Dropdown(names, value=names[index]), gr.Dropdown(value=name)
        try:
            written = snippet(run.board, index, request, target, name)
        except DerbyError as error:
            nothing = gr.Code(visible=False), gr.Button(visible=False)
            return [columns, libraries, str(error), *nothing]
        remark = f"{written.raced} {written.note}".strip()
        racing = written.column is not None and not written.raced
        code = gr.Code(written.code, visible=bool(written.code))
        return [columns, libraries, remark, code, gr.Button(visible=racing)]

    def race(run: Run | None, chosen: str, name: str, lineup: str) -> tuple[str, str]:
        assert run is not None  # noqa: S101 (the button is there of a race only)
        names = [run.board.name(i) for i in range(len(run.race.columns))]
        written = snippet(run.board, names.index(chosen), run.race.request, run.race.target, name)
        return f"{lineup.rstrip()}\n{written.column}", "It is a column of the next race."

    outputs = [column, library, note, code, add]
    column.input(show, [run, column], outputs, **QUIET)
    library.input(show, [run, column, library], outputs, **QUIET)
    add.click(race, [run, column, library, lineup], [lineup, note], **QUIET)
    return {"fn": show, "inputs": run, "outputs": outputs, **QUIET}
