"""The named functions that programs may call. They use the visitors' line and the visitors'
checks.
"""

from collections.abc import AsyncIterator, Callable
from inspect import Parameter, signature
from typing import Any

import gradio as gr
from gradio.events import api as endpoint

from backend.errors import explain
from backend.grammar.sources import Kind
from backend.web.api import Api, RaceCall, Report, usual_columns
from backend.web.offer import Offer
from page.components import visitor_of

#: Named, typed and shown on the page of the API, unlike the page's own functions.
OPEN: dict[str, Any] = {"concurrency_limit": None, "api_visibility": "public"}


def offer_api(api: Api, offer: Offer) -> None:
    """Add the endpoints to the page that is being built."""
    most = offer.limits.tokens

    async def race(request: gr.Request, *values: Any) -> AsyncIterator[Report]:
        """Race decoding strategies on one prompt. Yields what the race is doing, and at its end a
        headline, and of each column its text, figures, verdict and the reason for its speed.
        """
        asked = dict(zip(RaceCall.model_fields, values, strict=False))
        async for report in _told(api.race(visitor_of(request), asked), offer):
            yield report

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

    async def replay(race: str) -> Report:
        """Report on a recorded race, as the race itself did at its end.

        Args:
            race: The text of a file that a race was saved as.
        """
        try:
            return await api.replay(race)
        except Exception as error:
            raise gr.Error(offer.public(explain(error)), print_exception=False) from error

    async def check_grammar(kind: Kind, grammar: str, sample: str = "") -> Report:
        """Check whether a grammar works, and how much of a text it accepts.

        Args:
            kind: lark, json_schema or regex.
            grammar: The grammar itself.
            sample: A text to try.
        """
        return await api.check_grammar(kind, grammar, sample)

    declared = _declared(race, columns=usual_columns(offer), max_new_tokens=min(128, most))
    for function in (declared, benchmark, replay, check_grammar):
        endpoint(function, api_name=function.__name__, **OPEN)


def _declared(function: Callable[..., Any], **usual: Any) -> Callable[..., Any]:
    """The function with parameters in the place of its `values`, as gradio reads them: those that
    `RaceCall` declares, with other usual values where they are given.
    """
    fields = RaceCall.model_fields
    parameters = [
        Parameter(
            name,
            Parameter.POSITIONAL_OR_KEYWORD,
            default=Parameter.empty if field.is_required() else usual.get(name, field.default),
            annotation=field.annotation,
        )
        for name, field in fields.items()
    ]
    plain = signature(function)
    declared = plain.replace(parameters=[plain.parameters["request"], *parameters])
    vars(function)["__signature__"] = declared
    function.__annotations__ |= {each.name: each.annotation for each in parameters}
    about = [f"    {name}: {field.description}" for name, field in fields.items()]
    function.__doc__ = "\n".join([function.__doc__ or "", "Args:", *about])
    return function


async def _told(reports: AsyncIterator[Report], offer: Offer) -> AsyncIterator[Report]:
    """The reports. An error is passed on to gradio with its sentence."""
    try:
        async for report in reports:
            yield report
    except Exception as error:
        raise gr.Error(offer.public(explain(error)), print_exception=False) from error
