"""The section "Production": a column of the race on show as code for libraries, which can be raced
like any other column.
"""

from typing import Any

import gradio as gr

from backend.errors import DerbyError
from backend.export.production import LIBRARIES
from backend.web.lineup import text_of
from backend.web.lineup_editor import editor_state
from page.components import NEWEST, QUIET, WORDS, Fields, Surroundings, answer, visitor_of
from page.lineup import preview
from page.modules import calling


def fill(sections: gr.HTML, around: Surroundings) -> Fields:
    controller, offer, lineup = around.controller, around.offer, around.fields["lineup"]
    with gr.Row():
        column = gr.Dropdown([], elem_id="code-column", **WORDS["code column"])
        library = gr.Dropdown(list(LIBRARIES), value=None, **WORDS["code library"])
    note = answer("code-note", "code note")
    race = gr.Button("Race this code", size="sm", visible=False, elem_id="code-race")
    code = gr.Code(
        language="python",
        interactive=False,
        label="Code",
        lines=6,
        buttons=["copy"],
        elem_id="code",
    )

    def write(request: gr.Request, chosen: Any, name: Any) -> tuple[Any, Any, str, Any]:
        visitor = visitor_of(request)
        names, usual = controller.on_show(visitor)
        chosen = chosen if chosen in names else usual
        made = controller.production(visitor, chosen, name)
        shown = gr.update(
            value=made.code, language="shell" if made.language == "bash" else "python"
        )
        racing = gr.update(visible=made.column is not None and not made.raced)
        note = f"{made.raced} {made.note}".strip()
        return gr.update(choices=names, value=chosen), shown, note, racing

    def suggest(request: gr.Request, chosen: Any, name: Any) -> tuple[Any, Any, Any, str, Any]:
        """For the library on show if it can do what the column does, else for one that can."""
        visitor = visitor_of(request)
        names, usual = controller.on_show(visitor)
        chosen = chosen if chosen in names else usual
        name = controller.library(visitor, chosen, name)
        return name, *write(request, chosen, name)

    def add(request: gr.Request, before: Any, chosen: Any, name: Any) -> tuple[Any, Any, str, Any]:
        """Add the column that runs the code to the line-up."""
        try:
            text = controller.with_code(visitor_of(request), str(text_of(before)), chosen, name)
        except DerbyError as error:
            return before, gr.skip(), offer.public(str(error)), gr.skip()
        return (
            editor_state(text, offer),
            preview(text, offer),
            "It is a column of the next race.",
            gr.update(visible=False),
        )

    shown = [column, code, note, race]
    gr.on([sections.expand, column.input], suggest, [column, library], [library, *shown], **NEWEST)
    library.input(write, [column, library], shown, **NEWEST)
    added = race.click(add, [lineup, column, library], [lineup, around.board, note, race], **QUIET)
    added.then(None, list(around.fields.values()), None, js=calling("kept.js", "keepForm"))
    return {}
