"""The whole page: the prompt, the tabs, the board, and what the buttons do."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import gradio as gr

from backend.models.files import BUILT_IN
from backend.racing.hosts.host import Host
from backend.web.controller import Controller
from backend.web.editor import page_tokenizer
from backend.web.lineup import USUAL
from backend.web.offer import offer_of
from backend.web.view import View
from backend.web.visitors import Visitors
from page import lineup, model, own_grammar, production, sampling, save
from page.components import BARE, QUIET, UNREAD, WORDS, Fields, Surroundings, asset

#: The tabs in their order: title, and what fills the tab and returns its fields of the form.
TABS: tuple[tuple[str, Callable[[gr.Tab, Surroundings], Fields]], ...] = (
    ("Columns", lineup.fill),
    ("Own grammar", own_grammar.fill),
    ("Sampling", sampling.fill),
    ("Model", model.fill),
    ("Save", save.fill),
    ("Production", production.fill),
)


def build(host: Host, engines: Sequence[str], models: Sequence[str] = (BUILT_IN,)) -> gr.Blocks:
    """The page over `host`. `engines` and `models` are what visitors may choose from."""
    offer, visitors = offer_of(engines, models), Visitors(host)
    controller = Controller(visitors, offer)
    fields: Fields = {}
    with gr.Blocks(title="Decode Derby", analytics_enabled=False, fill_width=True) as demo:
        gr.HTML(html_template=asset("header.html"), js_on_load=asset("page.js"), **BARE)
        board = _board(lineup.preview(USUAL, offer))
        around = Surroundings(
            controller, offer, lambda: page_tokenizer(offer.models), board, fields
        )
        with gr.Row():
            with gr.Column(scale=5, min_width=320):
                fields |= _prompt()
                with gr.Row():
                    run = gr.Button("Run", variant="primary", elem_id="run", min_width=100)
                    stop = gr.Button("Stop", variant="stop", elem_id="stop", min_width=100)
                    more = gr.Button("Continue", elem_id="continue", min_width=100)
                gr.HTML(html_template=asset("keys.html"), **BARE)
            with gr.Column(scale=6, min_width=320), gr.Tabs():
                for title, fill in TABS:
                    with gr.Tab(title) as tab:
                        fields |= fill(tab, around)
        board.render()
        _wire(demo, visitors, controller, fields, (run, stop, more, board))
    return demo


def _board(view: View) -> gr.HTML:
    return gr.HTML(
        view,
        html_template=asset("board.html"),
        js_on_load=asset("curve.js") + asset("board.js"),
        elem_id="board",
        render=False,
        **BARE,
    )


def _prompt() -> Fields:
    examples = json.loads(asset("examples.json"))
    prompt = gr.Textbox(
        examples[0]["prompt"], lines=6, max_lines=12, elem_id="prompt", **WORDS["prompt"]
    )
    with gr.Row(elem_id="examples"):
        for example in examples:
            pick = gr.Button(example["label"], size="sm")
            pick.click(None, None, prompt, js=f"() => {json.dumps(example['prompt'])}")
    return {"prompt": prompt}


def _wire(
    demo: gr.Blocks,
    visitors: Visitors,
    controller: Controller,
    fields: Fields,
    parts: tuple[gr.Button, gr.Button, gr.Button, gr.HTML],
) -> None:
    run, stop, more, board = parts

    async def race(request: gr.Request, *values: Any) -> AsyncIterator[View]:
        form = dict(zip(fields, values, strict=True))
        async for view in controller.race(request.session_hash or "", form):
            yield view

    async def go_on(request: gr.Request, tokens: Any) -> AsyncIterator[View]:
        async for view in controller.go_on(request.session_hash or "", tokens):
            yield view

    def halt(request: gr.Request) -> None:
        visitors.stop(request.session_hash or "")

    def leave(request: gr.Request) -> None:
        visitors.leave(request.session_hash or "")

    run.click(race, list(fields.values()), board, **UNREAD)
    more.click(go_on, fields["max_new_tokens"], board, **UNREAD)
    stop.click(halt, trigger_mode="multiple", **QUIET)
    demo.unload(leave)
