"""The section "Production": a column of the last race as code for other libraries."""

from typing import Any

import gradio as gr

from backend.export.production import LIBRARIES
from page.components import NEWEST, WORDS, Fields, Surroundings, answer, last_columns, visitor_of


def fill(sections: gr.HTML, around: Surroundings) -> Fields:
    with gr.Row():
        column = gr.Dropdown([], elem_id="code-column", **WORDS["code column"])
        library = gr.Dropdown(list(LIBRARIES), value=next(iter(LIBRARIES)), **WORDS["code library"])
    note = answer("code-note", "code note")
    code = gr.Code(
        language="python",
        interactive=False,
        label="Code",
        lines=6,
        max_lines=22,
        buttons=["copy"],
        elem_id="code",
    )

    def write(request: gr.Request, chosen: Any, name: Any) -> tuple[Any, Any, str]:
        visitor = visitor_of(request)
        usual = chosen or around.controller.winner(visitor)
        columns, chosen = last_columns(around.controller, request, usual)
        snippet = around.controller.production(visitor, chosen, name)
        language = "shell" if snippet.language == "bash" else "python"
        return columns, gr.update(value=snippet.code, language=language), snippet.note

    def suggest(request: gr.Request, chosen: Any, name: Any) -> tuple[Any, Any, Any, str]:
        """For the library on show if it can do what the column does, else for one that can."""
        usual = chosen or around.controller.winner(visitor_of(request))
        label = last_columns(around.controller, request, usual)[1]
        name = around.controller.library(visitor_of(request), label, name)
        return name, *write(request, label, name)

    shown = [column, code, note]
    gr.on([sections.expand, column.input], suggest, [column, library], [library, *shown], **NEWEST)
    library.input(write, [column, library], shown, **NEWEST)
    return {}
