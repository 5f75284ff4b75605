"""The section "Save": save a column's state to disk, and continue from a saved one."""

from typing import Any

import gradio as gr

from backend.web.view import View
from page.components import (
    NEWEST,
    QUIET,
    WORDS,
    Fields,
    Surroundings,
    keyed,
    last_columns,
    visitor_of,
)


def fill(sections: gr.HTML, around: Surroundings) -> Fields:
    controller = around.controller
    with gr.Row():
        column = gr.Dropdown([], **WORDS["save column"])
        save = gr.Button("Save", elem_id="save", min_width=100)
    with gr.Row():
        own = gr.Dropdown([], elem_id="own-snapshots", **WORDS["own snapshots"])
        snapshot = gr.Textbox(max_lines=1, elem_id="snapshot", **WORDS["snapshot"])
    with gr.Row():
        load = gr.Button("Load and continue", elem_id="load", min_width=100)
        delete = gr.Button("Delete", elem_id="delete", min_width=100)
    answer = gr.Textbox(
        interactive=False, show_label=False, container=False, placeholder=" ", elem_id="told"
    )

    def look(request: gr.Request, chosen: Any) -> Any:
        return last_columns(controller, request, chosen)[0]

    def list_own(request: gr.Request, name: Any) -> Any:
        saved = controller.saved(visitor_of(request))
        known = any(name == each for _, each in saved)
        return gr.update(choices=saved, value=name if known else None)

    async def keep(request: gr.Request, chosen: Any) -> tuple[Any, Any, str]:
        columns, usual = last_columns(controller, request, chosen)
        wanted = usual if chosen is None else chosen
        name, sentence = await controller.save(visitor_of(request), wanted)
        return columns, name or gr.skip(), sentence

    def drop(request: gr.Request, name: Any) -> tuple[Any, str]:
        gone, sentence = controller.delete(visitor_of(request), name)
        return "" if gone else gr.skip(), sentence

    async def restore(request: gr.Request, name: Any, tokens: Any) -> View:
        return keyed(request, await controller.restore(visitor_of(request), name, tokens))

    sections.select(look, column, column, **NEWEST)
    sections.select(list_own, snapshot, own, **NEWEST)
    # The same sentence twice in a row would look like no answer.
    for button in (save, delete):
        button.click(None, None, answer, js="() => ''")
    save.click(keep, column, [column, snapshot, answer], **QUIET).then(
        list_own, snapshot, own, **QUIET
    )
    delete.click(drop, snapshot, [snapshot, answer], **QUIET).then(list_own, snapshot, own, **QUIET)
    # A list that is closed without a choice says null.
    own.input(None, [own, snapshot], snapshot, js="(chosen, id) => chosen || id")
    load.click(restore, [snapshot, around.fields["max_new_tokens"]], around.board, **QUIET)
    return {}
