"""The whole page: what it shows, and what its buttons do."""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import gradio as gr

from backend.errors import DerbyError
from backend.form import EXAMPLES, form_from, query_of, usual_lineup
from backend.offer import Offer
from backend.racing.hosts import Host
from page import bench
from page.api import offer_api
from page.components import CHECKED, QUIET, Fields, board, in_browser, refusal
from page.guests import LINE
from page.panels import history, past_races, production, why
from page.race import Run, opening, race
from page.settings import settings

TITLE = "Decode Derby"
ABOUT = (
    "Race ways to decode the same prompt, side by side: which is fastest on this machine, by how "
    "much, why, and does it change the text?"
)


def build(host: Host, offer: Offer) -> gr.Blocks:
    """The page over `host`, which runs its races."""
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as demo:
        offer_api(host, offer)  # first, so that its names are free
        gr.Markdown(f"# {TITLE}\n{ABOUT}", elem_id="about")
        prompt = gr.Textbox(
            EXAMPLES[0].prompt, lines=1, max_lines=8, label="Prompt", elem_id="prompt", render=False
        )
        sidebar, fields = settings(offer, prompt)
        run, races = gr.State(None, time_to_live=3600), past_races()
        with gr.Tabs(elem_id="tabs") as tabs:
            with _tab("Race"):
                screen, follow = _race_tab(demo, host, offer, sidebar, fields, run, races)
            with _tab("Benchmark"):
                bench.fill(host, offer, fields)
            with _tab("History") as tab:
                opened = history(tab, races, run, screen, fields)
        opened.then(lambda: gr.Tabs(selected="race"), None, tabs, **QUIET)
        follow(opened)

        def load(request: gr.Request) -> list[Any]:
            """The tab, the race and the form that an address asks for."""
            query = dict(request.query_params)
            try:
                form = form_from(query).model_dump()
                form["lineup"] = form["lineup"] or usual_lineup(form["model"], offer)
            except DerbyError as error:
                raise refusal(error) from error
            tab = query.get("tab", "")
            tabs = gr.Tabs(selected=tab if tab in ("benchmark", "history") else "race")
            return [tabs, opening(), *(form[name] for name in fields)]

        follow(demo.load(load, None, [tabs, run, *fields.values()], **CHECKED))
    return demo


def _tab(title: str) -> gr.Tab:
    """A tab with an address of its own."""
    name = title.lower()
    tab = gr.Tab(title, id=name, elem_id=f"tab-{name}")
    tab.select(None, js=in_browser("go", name), **QUIET)
    return tab


def _race_tab(
    demo: gr.Blocks,
    host: Host,
    offer: Offer,
    sidebar: gr.Sidebar,
    fields: Fields,
    run: gr.State,
    races: gr.BrowserState,
) -> tuple[gr.HTML, Callable[[Any], None]]:
    """Lay the race out and connect it. Returns the board, and what has everything else follow the
    board after an event.
    """
    fields["prompt"].render()
    with gr.Row():
        press = gr.Button("Run", variant="primary", scale=3, min_width=90, elem_id="run")
        stop = gr.Button("Stop", min_width=90, elem_id="stop")
        share = gr.Button("Share", min_width=90, elem_id="share")
        opener = gr.Button("Settings", min_width=90, elem_id="opener")
    opener.click(lambda: gr.Sidebar(open=True), None, sidebar, **QUIET)
    link = gr.Textbox(label="Link", buttons=["copy"], visible=False, elem_id="link")
    line = gr.HTML(elem_id="line")
    gr.Examples(
        [[example.prompt, example.lineup, example.tokens] for example in EXAMPLES],
        [fields["prompt"], fields["lineup"], fields["max_new_tokens"]],
        example_labels=[example.label for example in EXAMPLES],
        api_visibility="private",
    )
    screen = board(opening().draw() | {"phase": "recorded"}, elem_id="board")
    explanation = why()
    code = production(run, fields["lineup"])

    def link_of(*values: Any) -> gr.Textbox:
        return gr.Textbox(query_of(dict(zip(fields, values, strict=True))), visible=True)

    def others_wait() -> bool:
        queue = demo._queue.event_queue_per_concurrency_id.get(LINE)  # noqa: SLF001 (has no other name)
        return bool(queue and queue.queue)

    async def start(*values: Any) -> AsyncIterator[tuple[Any, Run]]:
        form = dict(zip(fields, values, strict=True))
        try:
            async with aclosing(race(host, offer, form, others_wait)) as drawings:
                async for drawing in drawings:
                    yield drawing
        except DerbyError as error:
            raise refusal(error) from error

    def end(run: Run | None) -> Any:
        return run.end() if run and not run.over else gr.skip()

    def follow(event: Any) -> None:
        event.then(**code)
        event.then(None, screen, explanation, js=in_browser("why"), **QUIET)

    shared = share.click(link_of, list(fields.values()), link, **QUIET)
    shared.then(None, link, link, js=in_browser("share"), **QUIET)
    runs = [press.click, fields["prompt"].submit, screen.submit]
    gr.on(runs, lambda: gr.Textbox(visible=False), None, link, **QUIET)
    going = gr.on(
        runs,
        start,
        list(fields.values()),
        [screen, run],
        concurrency_id=LINE,
        concurrency_limit=1,
        api_visibility="private",
        show_progress_on=line,
    )
    stop.click(None, cancels=[going], **QUIET)
    # gradio does what follows a race where it was cancelled, too, and as soon as it has ended.
    ended = going.then(end, run, screen, **QUIET)
    follow(ended)
    ended.then(None, [races, screen], races, js=in_browser("keep"), **QUIET)
    follow(screen.input(lambda: None, None, run, **QUIET))  # a file was dropped on it
    return screen, follow
