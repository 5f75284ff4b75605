"""The benchmark: the line-up on a set of prompts, each column alone."""

import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import gradio as gr

from backend.web.benchmark import Benchmarks
from backend.web.feeds import Draw, Feeds
from backend.web.view import View, begun
from page.components import (
    QUIET,
    WORDS,
    Fields,
    keyed,
    own,
    visitor_of,
    whole_number,
)
from page.modules import calling


def fill(benchmarks: Benchmarks, fields: Fields, feeds: Feeds) -> None:
    """Lay it out and wire it. `fields` is the form; `feeds` show what has been measured."""
    prompts = gr.Textbox(lines=4, max_lines=10, elem_id="prompt-set", **WORDS["prompt set"])
    with gr.Row(equal_height=False):
        repeats = whole_number("repeats", 1)
        begin = gr.Button("Start", variant="primary", elem_id="benchmark-start", scale=0)
        gr.Button("Stop", elem_id="benchmark-stop", scale=0)
        resume = gr.Button("Resume", elem_id="benchmark-resume", scale=0)
    shown = own("benchmark")

    async def draws(first: View, later: AsyncIterator[View]) -> AsyncIterator[Draw]:
        yield partial(dict, first)
        async for view in later:
            yield partial(dict, view)

    async def start(
        request: gr.Request, before: Any, chosen: Any, times: Any, *values: Any
    ) -> View:
        form, visitor = dict(zip(fields, values, strict=True)), visitor_of(request)
        views = benchmarks.start(visitor, form, chosen, times, before)
        first = await anext(views)
        if "alert" in first:
            return first
        feeds.of(visitor).show("benchmark", draws(first, views))
        return keyed(request, begun(time.time_ns() // 1_000_000))

    before = gr.Textbox(visible="hidden")
    asked = [before, prompts, repeats, *fields.values()]
    for button, what in ((begin, "beginBenchmark"), (resume, "resumeBenchmark")):
        button.click(start, asked, shown, js=calling("kept.js", what), **QUIET)
