"""What programs may call, by name: on the visitors' line, by the visitors' checks."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import gradio as gr
from gradio.events import api as endpoint

from backend.errors import explain
from backend.grammar.sources import Kind
from backend.strategies.registry import DEFAULT_COLUMNS
from backend.web.api import Api, Report
from backend.web.offer import Offer
from page.components import visitor_of

#: Named, typed and shown on the page of the API, unlike the page's own functions.
OPEN: dict[str, Any] = {"concurrency_limit": None, "api_visibility": "public"}


def offer_api(api: Api, offer: Offer) -> None:
    """Add the endpoints to the page that is being built."""
    for named in (_race, _benchmark, _replay, _check_grammar):
        function = named(api, offer)
        endpoint(function, api_name=function.__name__, **OPEN)


def _race(api: Api, offer: Offer) -> Callable[..., Any]:
    most = offer.limits.tokens

    async def race(
        request: gr.Request,
        prompt: str,
        columns: list[str] = list(DEFAULT_COLUMNS),  # noqa: B006 (read alone)
        max_new_tokens: int = min(128, most),
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        stop: list[str] = [],  # noqa: B006 (read alone)
        chat: bool = True,
        model: str = "",
        engine: str = "",
        precision: str = "",
        device: str = "",
        grammar_kind: Kind = "lark",
        grammar: str = "",
        top: int = 0,
    ) -> AsyncIterator[Report]:
        """Race decoding strategies on one prompt. Yields what the race is doing, and at its end a
        headline, and of each column its text, figures, verdict and the reason for its speed.

        Args:
            prompt: What to answer.
            columns: One column each, as strategy@engine/precision/device:setting=value,...; all
                but the strategy may be left out. kv is the baseline.
            max_new_tokens: Tokens that each column writes at most.
            temperature: 0 is greedy.
            top_p: 1 is off.
            top_k: 0 is off.
            seed: The same seed gives the same text.
            stop: Strings that end a text.
            chat: Whether the prompt is put into the model's chat template.
            model: A model that this page offers; empty: its first.
            engine: What computes; empty: the page's first.
            precision: Of the weights; empty: the engine's first.
            device: Where it computes; empty: the engine's first.
            grammar_kind: lark, json_schema, regex or gbnf.
            grammar: The grammar of columns with grammar=own.
            top: For each token that is written, tell so many of the most probable ones in its
                place with their probabilities, 10 at most.
        """
        asked = {
            "prompt": prompt,
            "columns": columns,
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "seed": seed,
            "stop": stop,
            "chat": chat,
            "model": model,
            "engine": engine,
            "precision": precision,
            "device": device,
            "grammar.kind": grammar_kind,
            "grammar.text": grammar,
            "top": top,
        }
        async for report in _told(api.race(visitor_of(request), asked), offer):
            yield report

    return race


def _benchmark(api: Api, offer: Offer) -> Callable[..., Any]:
    most = offer.limits.tokens

    async def benchmark(
        request: gr.Request, prompts: list[str], max_new_tokens: int = min(96, most)
    ) -> AsyncIterator[Report]:
        """Find the strategy to use on prompts like these, with this page's first model: each runs
        alone on every prompt. Yields how far it is, and at last the best one.

        Args:
            prompts: At least four, for an interval.
            max_new_tokens: Tokens that each column writes at most.
        """
        found = api.benchmark(visitor_of(request), prompts, max_new_tokens)
        async for report in _told(found, offer):
            yield report

    return benchmark


def _replay(api: Api, offer: Offer) -> Callable[..., Any]:
    async def replay(race: str) -> Report:
        """Report on a recorded race, as the race itself did at its end.

        Args:
            race: A link to a race, or the text of a file that a race was saved as.
        """
        try:
            return await api.replay(race)
        except Exception as error:
            raise gr.Error(offer.public(explain(error)), print_exception=False) from error

    return replay


def _check_grammar(api: Api, _: Offer) -> Callable[..., Any]:
    async def check_grammar(
        request: gr.Request, kind: Kind, grammar: str, sample: str = ""
    ) -> Report:
        """Tell whether a grammar is sound, and how far a text fits it.

        Args:
            kind: lark, json_schema, regex or gbnf.
            grammar: The grammar itself.
            sample: A text to try.
        """
        return await api.check_grammar(visitor_of(request), kind, grammar, sample)

    return check_grammar


async def _told(reports: AsyncIterator[Report], offer: Offer) -> AsyncIterator[Report]:
    """The reports; an error as gradio passes it on, in its sentence."""
    try:
        async for report in reports:
            yield report
    except Exception as error:
        raise gr.Error(offer.public(explain(error)), print_exception=False) from error
