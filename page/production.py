"""The section "Production": a column of the race on show as code for other libraries."""

from typing import Any

import gradio as gr

from backend.export.production import LIBRARIES
from page.components import NEWEST, WORDS, Fields, Surroundings, answer, visitor_of


def fill(sections: gr.HTML, around: Surroundings) -> Fields:
    controller = around.controller
    with gr.Row():
        column = gr.Dropdown([], elem_id="code-column", **WORDS["code column"])
        library = gr.Dropdown(list(LIBRARIES), value=next(iter(LIBRARIES)), **WORDS["code library"])
    note = answer("code-note", "code note")
    code = gr.Code(
        language="python",
        interactive=False,
        label="Code",
        lines=6,
        buttons=["copy"],
        elem_id="code",
    )

    def write(request: gr.Request, chosen: Any, name: Any) -> tuple[Any, Any, str]:
        visitor = visitor_of(request)
        names, usual = controller.on_show(visitor)
        chosen = chosen if chosen in names else usual
        snippet = controller.production(visitor, chosen, name)
        language = "shell" if snippet.language == "bash" else "python"
        code = gr.update(value=snippet.code, language=language)
        return gr.update(choices=names, value=chosen), code, snippet.note

    def suggest(request: gr.Request, chosen: Any, name: Any) -> tuple[Any, Any, Any, str]:
        """For the library on show if it can do what the column does, else for one that can."""
        visitor = visitor_of(request)
        names, usual = controller.on_show(visitor)
        chosen = chosen if chosen in names else usual
        name = controller.library(visitor, chosen, name)
        return name, *write(request, chosen, name)

    shown = [column, code, note]
    gr.on([sections.expand, column.input], suggest, [column, library], [library, *shown], **NEWEST)
    library.input(write, [column, library], shown, **NEWEST)
    return {}
