"""The whole page: the prompt, the tabs, the board, and what the buttons do."""

from collections.abc import Sequence
from typing import Any

import gradio as gr

from backend.limits import Limits
from backend.racing.hosts.host import Host
from backend.remote.server import named_servers
from backend.web.api import Api
from backend.web.benchmark import Benchmarks
from backend.web.controller import Controller
from backend.web.editor import Editor, page_tokenizer
from backend.web.examples import examples, opening
from backend.web.feeds import Feeds
from backend.web.lineup_editor import editor_state
from backend.web.metrics import Metrics
from backend.web.offer import Offer, offer_of
from backend.web.presence import Presence
from backend.web.view import View, opening_view
from backend.web.visitors import Visitors
from page import benchmark, races, settings
from page.api import offer_api
from page.components import (
    QUIET,
    WORDS,
    Fields,
    Surroundings,
    keyed,
    own,
    visitor_of,
)
from page.document import TITLE
from page.kept import keep
from page.lineup import preview
from page.modules import calling


def build(
    host: Host,
    engines: Sequence[str],
    models: Sequence[str],
    limits: Limits,
    presence: Presence,
    metrics: Metrics | None,
) -> tuple[gr.Blocks, Controller, Api]:
    """The page over `host`, who serves its visitors, and what programs may ask of it. `engines` and
    `models` are what visitors may choose from, `limits` what each of them may take. `presence`
    knows who is connected, `metrics` hears of every race.
    """
    devices = host.facts().devices
    offer, fields = offer_of(engines, models, limits, named_servers(), devices), Fields()
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as demo:
        feeds = Feeds(limits.visitors)
        visitors = Visitors(host, limits, presence, feeds.forget, metrics)
        if metrics is not None:
            metrics.waiting = lambda: visitors.waiting
        controller = Controller(visitors, offer, feeds)
        header = own("header", script="page.js")
        first = examples()[0]
        board = own("board", opening_view(opening()), render=False)
        editor = Editor(lambda: page_tokenizer(offer.models))
        around = Surroundings(controller, offer, editor, board, fields)
        with gr.Tabs(elem_id="views") as views, gr.Tab("Race"):
            picks = own("examples", examples=[[each.label, each.prompt] for each in examples()])
            with gr.Row(elem_id="bar"):
                fields["prompt"] = gr.Textbox(
                    first.prompt, lines=1, max_lines=8, elem_id="prompt", **WORDS["prompt"]
                )
                run = gr.Button("Run", variant="primary", elem_id="run", min_width=90, scale=0)
                gr.Button("Stop", variant="stop", elem_id="stop", min_width=90, scale=0)
                more = gr.Button("Continue", elem_id="continue", min_width=90, scale=0)
                chip = settings.chip_of(offer)
            board.render()
            races.fill_below(controller)
        settings.fill(around, fields, chip)
        _set_examples(picks, fields, offer, board)
        _wire(controller, fields, run, more, board)
        benchmarks = Benchmarks(visitors, offer)
        with views, gr.Tab("Benchmark"):
            benchmark.fill(benchmarks, fields, feeds)
        with views, gr.Tab("History"):
            races.fill_history(controller)
        keep(demo, fields, offer, controller, header, board)
        api = Api(visitors, offer, editor, benchmarks)
        offer_api(api, offer)
    return demo, controller, api


def _set_examples(picks: gr.HTML, fields: Fields, offer: Offer, board: gr.HTML) -> None:
    """Have the example that is picked set up its race; what was chosen beyond that stays."""
    known = {example.label: example for example in examples()}

    def choose(label: Any) -> tuple[str, dict[str, Any], int, View]:
        example = known.get(str(label), examples()[0])
        lineup = example.lineup(offer)
        tokens = min(example.tokens, offer.limits.tokens)
        shown = preview(lineup, offer, example.about)
        return example.prompt, editor_state(lineup, offer), tokens, shown

    outputs = [*(fields[name] for name in ("prompt", "lineup", "max_new_tokens")), board]
    chosen = picks.input(choose, picks, outputs, **QUIET)
    settings.show_chip(chosen.then, fields)
    # A line-up that is not loaded yet tells of no change.
    chosen.then(None, list(fields.values()), None, js=calling("kept.js", "keepForm"))


def _wire(
    controller: Controller, fields: Fields, run: gr.Button, more: gr.Button, board: gr.HTML
) -> None:
    """What begins a race. Each call is answered at once; its visitor's stream shows the race."""

    async def start(request: gr.Request, *values: Any) -> View:
        form = dict(zip(fields, values, strict=True))
        return keyed(request, await controller.race(visitor_of(request), form))

    async def go_on(request: gr.Request, tokens: Any) -> View:
        return keyed(request, await controller.go_on(visitor_of(request), tokens))

    async def again(request: gr.Request) -> View:
        return keyed(request, await controller.again(visitor_of(request)))

    async def under_load(request: gr.Request) -> View:
        return keyed(request, await controller.under_load(visitor_of(request)))

    run.click(start, list(fields.values()), board, **QUIET)
    more.click(go_on, fields["max_new_tokens"], board, **QUIET)
    # The board's own buttons: beside a race whose timings are spoiled, and to measure load first.
    board.retry(again, None, board, **QUIET)
    board.input(under_load, None, board, **QUIET)
