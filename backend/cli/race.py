"""python -m backend race."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live

from backend.cli.console import as_utf8, out, read_input
from backend.cli.options import (
    AsJson,
    Columns,
    Device,
    EngineName,
    MaxNewTokens,
    Model,
    Precision,
    Raw,
    Seed,
    Temperature,
    target_model,
)
from backend.cli.tables import summary, texts
from backend.errors import DerbyError
from backend.events import to_json
from backend.grammar.sources import grammar_from_file
from backend.racing.hosts.inline import InlineHost
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import parse_column
from backend.strategies.registry import DEFAULT_COLUMNS
from backend.types import Request, Sampling


def race(
    prompt: Annotated[str, typer.Argument(help='The prompt; "-" reads it from standard input.')],
    column: Columns = list(DEFAULT_COLUMNS),  # noqa: B006 (typer copies it)
    model: Model = "built-in",
    engine: EngineName = "openvino",
    precision: Precision = "",
    device: Device = "CPU",
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 0.0,
    top_k: Annotated[int, typer.Option(help="0: off.")] = 0,
    top_p: Annotated[float, typer.Option(help="1: off.")] = 1.0,
    seed: Seed = 0,
    raw: Raw = False,
    stop: Annotated[list[str], typer.Option(help="End the text before this string.")] = [],  # noqa: B006
    context: Annotated[int, typer.Option(help="Positions to use; 0: all the model has.")] = 0,
    shift: Annotated[
        bool, typer.Option("--shift", help="Drop old tokens when the context is full, and go on.")
    ] = False,
    grammar: Annotated[
        Path | None,
        typer.Option(help="A .lark, .schema.json, .regex or .gbnf file: grammar=own in columns."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    text = read_input() if prompt == "-" else as_utf8(prompt)
    own = grammar_from_file(grammar) if grammar else None
    columns = tuple(parse_column(name, own) for name in column)
    sampling = Sampling(temperature, top_k, top_p, seed)
    request = Request(
        text, max_new_tokens, sampling, not raw, tuple(map(as_utf8, stop)), context, shift
    )
    entered = Race(request, columns, target_model(model, engine, precision, device))
    board = Scoreboard(columns)
    events = InlineHost().stream(entered, lambda: False)
    if as_json:
        for event in events:
            board.add(event)
            print(json.dumps(to_json(event)), flush=True)  # noqa: T201 (this is the output)
    else:
        with Live(console=out, refresh_per_second=8, transient=True) as live:
            for event in events:
                board.add(event)
                live.update(board.preparing or summary(board))
        out.print(texts(board))
        out.print(summary(board))
    failures = {score.message for score in board.scores if score.state == "failed"}
    if failures:
        raise DerbyError("\n".join(sorted(failures)))
