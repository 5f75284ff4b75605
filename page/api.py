"""What programs and agents may call: typed functions, which gradio offers over HTTP and MCP."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from inspect import Parameter, Signature
from typing import Any

import gradio as gr
from gradio.context import LocalContext
from gradio.events import api

from backend.errors import DerbyError
from backend.form import Form, own_grammar, read_race, settings_table
from backend.grammar.sources import Kind
from backend.offer import Offer
from backend.racing.hosts import Host
from backend.racing.line import Line
from backend.results.figures import FIGURES
from backend.results.result import result_of
from backend.results.scoreboard import Scoreboard
from backend.results.sentences import headline, mark
from page.guests import HUNG_UP, guest_of
from page.race import Run, running
from page.settings import checked

Report = dict[str, Any]

Gone = Callable[[], Awaitable[bool]]


async def report_of(
    host: Host, line: Line, offer: Offer, form: Mapping[str, Any], guest: str, gone: Gone
) -> Report:
    """What the race of a form comes to; it ends when it is cancelled, or its caller is gone. Raises
    DerbyError for a refusal.
    """
    race, seconds = read_race(form, offer), offer.limits.seconds
    run = Run(race, offer)
    with line.place(guest) as place:
        async with aclosing(running(host, place, race, run, seconds)) as steps:
            async for _ in steps:
                if await gone():
                    break
    ended = f"Others waited, so it ended after {seconds} seconds." if run.overdue else ""
    return report(run.board) | {"ended_early": ended}


def offer_api(host: Host, line: Line, checks: Line, offer: Offer) -> None:
    """Register the functions. They are called outside of gradio's queue, so that a call that its
    client cancels ends its race; they wait in `line`, and the grammar's in `checks`.
    """

    async def race(request: gr.Request, *values: Any) -> Report:
        form = dict(zip(Form.model_fields, values, strict=True))
        try:
            gone = partial(has_left, request)
            return await report_of(host, line, offer, form, guest_of(request), gone)
        except DerbyError as error:
            raise gr.Error(str(error), print_exception=False) from error

    _declare(race)

    async def settings() -> list[list[str]]:
        """List the columns of a line-up and their settings: name, setting=usual, what it does."""
        return [list(line) for line in settings_table()]

    async def grammar_check(request: gr.Request, kind: Kind, text: str, sample: str = "") -> Report:
        """Check that a grammar works, and how far a sample text fits it.

        Args:
            kind: What the grammar is written in.
            text: The grammar.
            sample: A text to try on it.
        """
        try:
            source = own_grammar(kind, text, offer)
            fit = await checked(checks, guest_of(request), source, sample)
        except DerbyError as error:
            raise gr.Error(str(error), print_exception=False) from error
        return {
            "accepted_characters": fit.accepted,
            "may_end_here": fit.accepting and fit.verdict in (None, "valid"),
        }

    functions: tuple[Callable[..., Any], ...] = (race, settings, grammar_check)
    for function in functions:
        api(function, api_name=function.__name__, queue=False)


def _declare(race: Callable[..., Any]) -> None:
    """Give the function the form's fields as its parameters, with their texts: gradio and agents
    read its signature and its docstring. The prompt alone has no default.
    """
    texts = (
        f"    {name}: {field.description or field.title}."
        for name, field in Form.model_fields.items()
    )
    summary = "Race decoding strategies on a prompt and compare their speed and their texts."
    race.__doc__ = "\n".join([summary, "", "Args:", *texts])
    race.__annotations__ |= Form.__annotations__
    kind = Parameter.POSITIONAL_OR_KEYWORD
    prompt, *others = (p.replace(kind=kind) for p in Form.__signature__.parameters.values())
    parameters = [Parameter("request", kind), prompt.replace(default=Parameter.empty), *others]
    race.__signature__ = Signature(parameters, return_annotation=Report)  # pyright: ignore[reportFunctionMemberAccess]


async def has_left(request: gr.Request) -> bool:
    """Whether a caller is gone: of calls in gradio's queue their streams say it, of others the
    connection.
    """
    event = LocalContext.event_id.get(None)
    return event in HUNG_UP if event else await request.is_disconnected()


def report(board: Scoreboard) -> Report:
    """A race as plain values."""
    result = result_of(board)
    return {
        "headline": headline(board, result),
        "leaders": [str(board.columns[index]) for index in result.leaders],
        "texts": result.texts,
        "doubt": result.doubt,
        "columns": [
            {
                "column": str(board.columns[row.column]),
                "state": row.score.reason or row.state,
                "text": row.score.text,
                "values": row.score.values,
                "tokens": row.score.length,
                "speedup": row.speedup.value or None,
                "interval": row.speedup.interval,
                "verdict": row.verdict,
                "compared": mark(board, row),
                "message": row.message,
                "figures": {figure.name: figure.value(row) for figure in FIGURES},
            }
            for row in result.rows
        ],
    }
