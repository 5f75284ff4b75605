"""The benchmark: the line-up on a set of prompts, each column alone."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import gradio as gr

from backend.web.benchmark import Benchmarks
from backend.web.view import View
from page.components import (
    BARE,
    QUIET,
    UNREAD,
    WORDS,
    Fields,
    asset,
    script,
    visitor_of,
    whole_number,
)


def fill(benchmarks: Benchmarks, fields: Fields, stop: Callable[[str], None]) -> None:
    """Lay it out and wire it. `fields` is the form; `stop` ends what the visitor runs."""
    prompts = gr.Textbox(lines=4, max_lines=10, elem_id="prompt-set", **WORDS["prompt set"])
    with gr.Row(equal_height=False):
        repeats = whole_number("repeats", 1)
        begin = gr.Button("Start", variant="primary", elem_id="benchmark-start", scale=0)
        halt = gr.Button("Stop", elem_id="benchmark-stop", scale=0)
        resume = gr.Button("Resume", elem_id="benchmark-resume", scale=0)
    shown = gr.HTML(
        None,
        html_template=asset("benchmark.html"),
        js_on_load=script("benchmark.js"),
        elem_id="benchmark",
        **BARE,
    )

    async def start(
        request: gr.Request, before: Any, chosen: Any, times: Any, *values: Any
    ) -> AsyncIterator[View]:
        form = dict(zip(fields, values, strict=True))
        async for view in benchmarks.start(visitor_of(request), form, chosen, times, before):
            yield view

    def end(request: gr.Request) -> None:
        stop(visitor_of(request))

    before = gr.Textbox(visible="hidden")
    asked = [before, prompts, repeats, *fields.values()]
    for button, what in ((begin, "beginBenchmark"), (resume, "resumeBenchmark")):
        button.click(start, asked, shown, js=f"(...v) => window.{what}(...v)", **UNREAD)
    halt.click(end, trigger_mode="multiple", **QUIET)
