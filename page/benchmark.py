"""The tab "Benchmark": the line-up runs on a set of prompts, each column alone."""

import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import gradio as gr

from backend.web.benchmark import Benchmarks
from backend.web.examples import for_any_prompt
from backend.web.feeds import Draw, Feeds
from backend.web.offer import Offer
from backend.web.view import View, begun
from page.components import QUIET, Fields, keyed, own, visitor_of
from page.modules import calling


def fill(benchmarks: Benchmarks, fields: Fields, offer: Offer, feeds: Feeds) -> None:
    """Lay the tab out and connect it. `fields` is the form; `feeds` show what has been measured."""
    shown = own("benchmark")

    async def draws(first: View, later: AsyncIterator[View]) -> AsyncIterator[Draw]:
        yield partial(dict, first)
        async for view in later:
            yield partial(dict, view)

    async def start(request: gr.Request, asked: Any, *values: Any) -> View:
        form, visitor = dict(zip(fields, values, strict=True)), visitor_of(request)
        form["lineup"] = for_any_prompt(form["lineup"], offer)
        chosen = asked if isinstance(asked, dict) else {}
        what = (chosen.get(name) for name in ("prompts", "repeats", "before"))
        views = benchmarks.start(visitor, form, *what)
        first = await anext(views)
        if "alert" in first:
            return first
        feeds.of(visitor).show("benchmark", draws(first, views))
        return keyed(request, begun(time.time_ns() // 1_000_000))

    asked = [shown, *fields.values()]
    for event, what in ((shown.submit, "beginBenchmark"), (shown.play, "resumeBenchmark")):
        event(start, asked, shown, js=calling("kept.js", what), **QUIET)
