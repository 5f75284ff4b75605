"""The whole page: the prompt, the tabs, the board, and what the buttons do."""

from collections.abc import Sequence
from typing import Any

import gradio as gr

from backend.libraries.server import named_servers
from backend.limits import Limits
from backend.models.files import model_title
from backend.racing.hosts.host import Host
from backend.web.api import Api
from backend.web.assets import asset
from backend.web.benchmark import Benchmarks
from backend.web.controller import Controller
from backend.web.examples import examples, for_any_prompt, opening
from backend.web.lineup import text_of
from backend.web.lineup_editor import editor_state
from backend.web.offer import Offer, offer_of
from backend.web.presence import Presence
from backend.web.view import View, opening_view
from backend.web.visitors import Visitors
from page import benchmark, races, settings
from page.api import offer_api
from page.components import (
    QUIET,
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

#: Why the columns change once an example's prompt gives way to another one.
UNFIT = "Grammar fits only its example: Prompt lookup runs instead."


def build(
    host: Host,
    engines: Sequence[str],
    models: Sequence[str],
    limits: Limits,
    presence: Presence,
) -> tuple[gr.Blocks, Controller, Api]:
    """Build the page over `host`, which runs its visitors' races, and the functions that programs
    may call. `engines` and `models` are what visitors may choose from, and `limits` what each of
    them may use. `presence` knows who is connected.
    """
    offer, fields = offer_of(engines, models, limits, named_servers()), Fields()
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as demo:
        visitors = Visitors(host, limits, presence)
        controller = Controller(visitors, offer)
        header = own("header", script="page.js")
        layout = asset("board.html").replace("{export}", asset("export.html"))
        board = own("board", opening_view(opening()), layout=layout, render=False)
        around = Surroundings(controller, offer, board, fields)
        with _view("race"):
            fields["prompt"] = ask = own(
                "ask",
                examples()[0].prompt,
                examples=[[each.label, each.prompt] for each in examples()],
                models={key: model_title(label) for key, label in offer.labels.items()},
            )
            board.render()
            races.fill_below(controller)
        settings.fill(around, fields, ask)
        _set_examples(ask, fields, offer, board)
        _wire(controller, fields, ask, board)
        benchmarks = Benchmarks(visitors, offer)
        with _view("benchmark"):
            benchmark.fill(benchmarks, fields, offer, controller.feeds)
        with _view("history"):
            own("history")  # which the browser alone knows
        keep(demo, fields, offer, controller, header, board)
        api = Api(visitors, offer, benchmarks)
        offer_api(api, offer)
    return demo, controller, api


def _view(name: str) -> gr.Column:
    """What one of the header's tabs shows."""
    return gr.Column(elem_id=f"view-{name}", elem_classes="dd-view")


def _set_examples(ask: gr.HTML, fields: Fields, offer: Offer, board: gr.HTML) -> None:
    """Have the example whose prompt was chosen set up its race; all other settings stay. A prompt
    of the visitor's own instead of an example's is not raced with that one's grammar.
    """
    known = {example.prompt: example for example in examples()}

    def choose(prompt: Any, before: Any, goal: Any) -> tuple[Any, Any, Any]:
        if example := known.get(str(prompt)):
            lineup, about = example.lineup(offer), example.about
            tokens = min(example.tokens, offer.limits.tokens)
            return editor_state(lineup, offer), tokens, preview(lineup, offer, about, tokens)
        lineup, goal = for_any_prompt(before, offer), goal if isinstance(goal, int) else 0
        if lineup == text_of(before):
            return before, gr.skip(), gr.skip()  # see kept.py for why not skip() of a line-up
        return editor_state(lineup, offer), gr.skip(), preview(lineup, offer, UNFIT, goal)

    outputs = [fields["lineup"], fields["max_new_tokens"], board]
    asked = [ask, fields["lineup"], fields["max_new_tokens"]]
    chosen = ask.select(choose, asked, outputs, **QUIET)
    settings.show_chip(chosen.then, fields)
    # A line-up that is not loaded yet tells of no change.
    kept = chosen.then(None, list(fields.values()), None, js=calling("kept.js", "keepForm"))
    kept.then(None, js=calling("ask.js", "settle"))


def _wire(controller: Controller, fields: Fields, ask: gr.HTML, board: gr.HTML) -> None:
    """Connect what begins a race. Each call is answered at once; the visitor's stream shows the
    race.
    """

    async def start(request: gr.Request, *values: Any) -> View:
        form = dict(zip(fields, values, strict=True))
        return keyed(request, await controller.race(visitor_of(request), form))

    async def again(request: gr.Request) -> View:
        return keyed(request, await controller.again(visitor_of(request)))

    ask.submit(start, list(fields.values()), board, **QUIET)
    # The board's own button, beside a race whose timings are spoiled.
    board.retry(again, None, board, **QUIET)
