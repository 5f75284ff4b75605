"""The whole page: what it shows, and what its buttons do."""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import gradio as gr

from backend.errors import DerbyError
from backend.export.tables import FORMS
from backend.form import EXAMPLES, form_from, query_of, usual_lineup
from backend.offer import Offer
from backend.racing.hosts import Host
from backend.racing.line import Line
from backend.records.file import from_bytes, load
from backend.results.drawing import Drawing
from page import bench
from page.api import offer_api
from page.components import CHECKED, QUIET, Fields, board, in_browser, refusal
from page.guests import guest_of
from page.panels import history, past_races, production, why
from page.race import Run, drawn, unpacked
from page.settings import settings

#: The first example's race, as `race --record` writes it.
OPENING = Path(__file__).resolve().parent.parent / "assets" / "opening.json"

TITLE = "Decode Derby"
ABOUT = (
    "Race ways to decode the same prompt, side by side: which is fastest on this machine, by how "
    "much, why, and does it change the text?"
)


def build(host: Host, offer: Offer) -> gr.Blocks:
    """The page over `host`, which runs its races."""
    line, checks = Line(offer.limits.waiting), Line(offer.limits.waiting, "check")
    opening = Run(load(OPENING), offer, 1)
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as demo:
        offer_api(host, line, checks, offer)  # first, so that its names are free
        gr.Markdown(f"# {TITLE}\n{ABOUT}", elem_id="about")
        prompt = gr.Textbox(
            EXAMPLES[0].prompt, lines=1, max_lines=8, label="Prompt", elem_id="prompt", render=False
        )
        sidebar, fields = settings(offer, checks, prompt)
        run, races = gr.State(None, time_to_live=3600), past_races()
        with gr.Tabs(elem_id="tabs") as tabs:
            with _tab("Race"):
                screen, follow = _race_tab(host, line, offer, opening, sidebar, fields, run, races)
            with _tab("Benchmark"):
                bench.fill(host, line, offer, fields)
            with _tab("History") as tab:
                chosen, record = history(tab, races)

        def reopen(text: str, current: Run | None) -> tuple[Drawing, Run]:
            if current is not None and not current.over:
                raise refusal(DerbyError("A race runs: stop it, then open another one."))
            try:
                opened = Run(from_bytes(unpacked(text)), offer)
            except DerbyError as error:
                raise refusal(error) from error
            return opened.draw() | {"phase": "recorded"}, opened

        def reopen_file(current: Run | None, event: gr.EventData) -> tuple[Drawing, Run]:
            return reopen(event.record, current)

        # A record may take much memory.
        one_at_a_time: dict[str, Any] = CHECKED | {"concurrency_limit": 1}
        opened = chosen.success(reopen, [record, run], [screen, run], **one_at_a_time)
        follow(opened.success(lambda: gr.Tabs(selected="race"), None, tabs, **QUIET))
        follow(screen.input(reopen_file, run, [screen, run], **one_at_a_time))

        def load_page(request: gr.Request) -> list[Any]:
            """The tab, the race and the form that an address asks for."""
            query = dict(request.query_params)
            try:
                form = form_from(query).model_dump()
                form["lineup"] = form["lineup"] or usual_lineup(form["model"], offer)
            except DerbyError as error:
                raise refusal(error) from error
            # Who names none may have opened one before this arrives.
            tab = query.get("tab")
            tabs = gr.Tabs(selected=tab) if tab in ("benchmark", "history") else gr.skip()
            return [tabs, opening, *(form[name] for name in fields)]

        follow(demo.load(load_page, None, [tabs, run, *fields.values()], **CHECKED))
    return demo


def _tab(title: str) -> gr.Tab:
    """A tab with an address of its own."""
    name = title.lower()
    tab = gr.Tab(title, id=name, elem_id=f"tab-{name}")
    tab.select(None, js=in_browser("go", name), **QUIET)
    return tab


def _race_tab(
    host: Host,
    line: Line,
    offer: Offer,
    opening: Run,
    sidebar: gr.Sidebar,
    fields: Fields,
    run: gr.State,
    races: gr.BrowserState,
) -> tuple[gr.HTML, Callable[[Any], None]]:
    """Lay the race out and connect it. Returns the board, and what has everything else follow the
    board after an event.
    """
    inputs = list(fields.values())
    fields["prompt"].render()
    with gr.Row():
        # One of the two is in sight: Stop while a race waits or runs.
        press = gr.Button("Run", variant="primary", scale=3, min_width=90, elem_id="run")
        stop = gr.Button("Stop", variant="stop", scale=3, min_width=90, elem_id="stop")
        share = gr.Button("Share", min_width=90, elem_id="share")
        opener = gr.Button("Settings", min_width=90, elem_id="opener")
    opened = opener.click(lambda: gr.Sidebar(open=True), None, sidebar, **QUIET)
    opened.then(None, js=in_browser("settings"), **QUIET)
    gr.Examples(
        [[example.prompt, example.lineup, example.tokens] for example in EXAMPLES],
        [fields["prompt"], fields["lineup"], fields["max_new_tokens"]],
        example_labels=[example.label for example in EXAMPLES],
        api_visibility="private",
    )
    _connect_link(share, press, fields)
    screen = board(opening.draw() | {"phase": "recorded"}, elem_id="board")
    code, add, column = production(run)
    explanation = why()

    async def start(request: gr.Request, *values: Any) -> AsyncIterator[tuple[Any, Run]]:
        form = dict(zip(fields, values, strict=True))
        try:
            async with aclosing(drawn(host, line, offer, form, guest_of(request))) as drawings:
                async for drawing in drawings:
                    yield drawing
        except DerbyError as error:
            raise refusal(error) from error

    def end(run: Run | None) -> Any:
        return run.end() if run and not run.over else gr.skip()

    def follow(event: Any) -> None:
        event.then(**code)
        event.then(None, screen, explanation, js=in_browser("why"), **QUIET)

    going = press.click(
        start,
        inputs,
        [screen, run],
        concurrency_limit=None,
        api_visibility="private",
        show_progress="hidden",
    )
    stop.click(None, cancels=[going], **QUIET)
    # gradio does what follows a race where it was cancelled, too, and as soon as it has ended.
    ended = going.then(end, run, screen, **QUIET)
    follow(ended)
    ended.then(None, [races, screen], races, js=in_browser("keep"), **QUIET)
    _connect_requests(screen, add, column, fields)
    _connect_files(screen, run)
    return screen, follow


def _connect_requests(screen: gr.HTML, add: gr.Button, column: gr.Textbox, fields: Fields) -> None:
    """Have Enter in the prompt start a race, and buttons one like the race on the board: the same
    again, with its next step, or with the column whose code is shown.
    """
    inputs = list(fields.values())
    fields["prompt"].submit(None, js=in_browser("enter"), **QUIET)
    requests = (
        (screen.submit, "again", [screen]),
        (screen.select, "next", [screen]),
        (add.click, "extend", [screen, column]),
    )
    for event, script, more in requests:
        filled = event(None, [*more, *inputs], inputs, js=in_browser(script, *fields), **QUIET)
        filled.then(None, js=in_browser("run"), **QUIET)


def _connect_link(share: gr.Button, press: gr.Button, fields: Fields) -> None:
    """Have a button show and copy the address of the settings; the race's button hides it."""
    link = gr.Textbox(label="Link", buttons=["copy"], visible=False, elem_id="link")

    def link_of(*values: Any) -> gr.Textbox:
        try:
            query = query_of(dict(zip(fields, values, strict=True)))
        except DerbyError as error:
            raise refusal(error) from error
        return gr.Textbox(query, visible=True)

    shared = share.click(link_of, list(fields.values()), link, **CHECKED)
    shared.success(None, link, link, js=in_browser("share"), **QUIET)
    press.click(lambda: gr.Textbox(visible=False), None, link, **QUIET)


def _connect_files(screen: gr.HTML, run: gr.State) -> None:
    """Have the board's files made when they are asked for."""
    name, text = gr.Textbox(visible=False), gr.Textbox(visible=False)

    def file_of(run: Run | None, event: gr.EventData) -> tuple[str, str]:
        if run is None or event.name not in FORMS:
            raise refusal(DerbyError("The race is not here any more: open it from the history."))
        return event.name, FORMS[event.name](run.record)

    made = screen.download(file_of, run, [name, text], **CHECKED)
    made.success(None, [name, text], None, js=in_browser("save"), **QUIET)
