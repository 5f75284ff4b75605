"""The whole page: the prompt, the tabs, the board, and what the buttons do."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import gradio as gr

from backend.limits import PRIVATE, Limits
from backend.models.files import BUILT_IN
from backend.racing.hosts.host import Host
from backend.web.controller import Controller
from backend.web.editor import page_tokenizer
from backend.web.lineup import usual
from backend.web.metrics import Metrics
from backend.web.offer import offer_of
from backend.web.presence import Attendance
from backend.web.view import View
from backend.web.visitors import Visitors
from page import lineup, model, own_grammar, production, sampling, save
from page.components import BARE, QUIET, UNREAD, WORDS, Fields, Surroundings, asset, visitor_of
from page.sessions import Sessions

#: The tabs in their order: title, and what fills the tab and returns its fields of the form.
TABS: tuple[tuple[str, Callable[[gr.Tab, Surroundings], Fields]], ...] = (
    ("Columns", lineup.fill),
    ("Own grammar", own_grammar.fill),
    ("Sampling", sampling.fill),
    ("Model", model.fill),
    ("Save", save.fill),
    ("Production", production.fill),
)


def build(
    host: Host,
    engines: Sequence[str],
    models: Sequence[str] = (BUILT_IN,),
    limits: Limits = PRIVATE,
    presence: Attendance | None = None,
    metrics: Metrics | None = None,
) -> gr.Blocks:
    """The page over `host`. `engines` and `models` are what visitors may choose from, `limits` what
    each of them may take. `presence` knows who is connected; without it, a visitor is gone for good
    once gradio says so. `metrics` hears of every race.
    """
    offer, fields = offer_of(engines, models, limits), Fields()
    with gr.Blocks(title="Decode Derby", analytics_enabled=False, fill_width=True) as demo:
        sessions = Sessions(demo)
        visitors = Visitors(host, limits, presence, sessions.forget, metrics)
        if metrics is not None:
            metrics.waiting = lambda: visitors.waiting
        controller = Controller(visitors, offer, limits, sessions.backlog)
        gr.HTML(
            html_template=asset("header.html"),
            js_on_load=asset("connection.js") + asset("page.js"),
            **BARE,
        )
        board = _board(lineup.preview(usual(offer), offer))
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
        _wire(demo, visitors, controller, presence, fields, (run, stop, more, board))
        _tell_preparation(demo, controller, board)
        _run_again(controller, board)
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


def _unseen(name: str) -> gr.Button:
    """A button that the page's own script presses."""
    return gr.Button(name, elem_id=name, visible="hidden")


def _wire(
    demo: gr.Blocks,
    visitors: Visitors,
    controller: Controller,
    presence: Attendance | None,
    fields: Fields,
    parts: tuple[gr.Button, gr.Button, gr.Button, gr.HTML],
) -> None:
    run, stop, more, board = parts

    async def race(request: gr.Request, *values: Any) -> AsyncIterator[View]:
        form = dict(zip(fields, values, strict=True))
        async for view in controller.race(visitor_of(request), form):
            yield view

    async def go_on(request: gr.Request, tokens: Any) -> AsyncIterator[View]:
        async for view in controller.go_on(visitor_of(request), tokens):
            yield view

    async def look(request: gr.Request) -> View:
        return controller.look(visitor_of(request))

    async def here(request: gr.Request) -> None:
        controller.seen(visitor_of(request))

    def halt(request: gr.Request) -> None:
        visitors.stop(visitor_of(request))

    def leave(request: gr.Request) -> None:
        # Gradio has a page keep a connection open only if it is told when that ends.
        if presence is None:
            visitors.leave(visitor_of(request))

    run.click(race, list(fields.values()), board, **UNREAD)
    more.click(go_on, fields["max_new_tokens"], board, **UNREAD)
    stop.click(halt, trigger_mode="multiple", **QUIET)
    _unseen("look").click(look, None, board, **QUIET)
    _unseen("here").click(here, **QUIET)
    demo.unload(leave)


def _tell_preparation(demo: gr.Blocks, controller: Controller, board: gr.HTML) -> None:
    """Have a page that opens early say what is still being prepared."""

    async def prepare() -> AsyncIterator[View]:
        async for view in controller.prepare():
            yield view

    demo.load(prepare, None, board, **UNREAD)


def _run_again(controller: Controller, board: gr.HTML) -> None:
    """What the board's own button does, which stands beside a race whose timings are spoiled."""

    async def again(request: gr.Request) -> AsyncIterator[View]:
        async for view in controller.again(visitor_of(request)):
            yield view

    _unseen("again").click(again, None, board, **UNREAD)
