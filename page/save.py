"""The tab "Save": a column's state goes to disk, and a race goes on from one that was saved."""

from collections.abc import AsyncIterator
from typing import Any

import gradio as gr

from backend.strategies.column import default_column
from backend.strategies.registry import BASELINE, strategies
from backend.web.view import View
from page.components import UNREAD, WORDS, Fields, Surroundings


def fill(tab: gr.Tab, around: Surroundings) -> Fields:
    controller = around.controller
    titles = [strategy.title for strategy in strategies().values() if strategy.keeps_cache]
    with gr.Row():
        column = gr.Dropdown(titles, value=default_column(BASELINE).title, **WORDS["save column"])
        snapshot = gr.Textbox(max_lines=1, elem_id="snapshot", **WORDS["snapshot"])
    with gr.Row():
        save = gr.Button("Save", elem_id="save", min_width=100)
        load = gr.Button("Load and go on", elem_id="load", min_width=100)
    answer = gr.Textbox(interactive=False, show_label=False, container=False, elem_id="told")

    async def keep(request: gr.Request, title: Any) -> tuple[Any, str]:
        name, sentence = await controller.save(request.session_hash or "", title)
        return name or gr.skip(), sentence

    async def restore(request: gr.Request, name: Any, tokens: Any) -> AsyncIterator[View]:
        async for view in controller.restore(request.session_hash or "", name, tokens):
            yield view

    save.click(keep, column, [snapshot, answer], **UNREAD)
    load.click(restore, [snapshot, around.fields["max_new_tokens"]], around.board, **UNREAD)
    return {}
