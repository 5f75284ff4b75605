"""python -m backend race."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from backend.cli.console import as_utf8, read_input
from backend.cli.options import (
    AsJson,
    Choosing,
    Columns,
    IgnoreEos,
    MaxNewTokens,
    Raw,
    Target,
    Thinking,
    default_columns,
)
from backend.cli.tables import conclude, live
from backend.errors import DerbyError
from backend.events import Event
from backend.grammar.sources import grammar_from_file
from backend.racing.hosts.host import InlineHost
from backend.racing.race import Race
from backend.records.file import require_folder, save
from backend.records.record import recorded
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import parse_column
from backend.types import Request


def race(
    prompt: Annotated[str, typer.Argument(help='The prompt; "-" reads it from standard input.')],
    target: Target,
    choosing: Choosing,
    column: Columns = default_columns(),  # noqa: B008 (typer copies it)
    max_new_tokens: MaxNewTokens = 128,
    ignore_eos: IgnoreEos = False,
    thinking: Thinking = "",
    raw: Raw = False,
    stop: Annotated[list[str], typer.Option(help="Stop before this string. Repeatable.")] = [],  # noqa: B006
    context: Annotated[
        int, typer.Option(help="The most tokens of context; 0: as many as the model allows.")
    ] = 0,
    grammar: Annotated[
        Path | None,
        typer.Option(help="A .lark, .schema.json, .regex or .gbnf file, for grammar=own."),
    ] = None,
    top: Annotated[
        int,
        typer.Option(
            help="How many of the most likely tokens to record at each position, for --json."
        ),
    ] = 0,
    record: Annotated[
        Path | None, typer.Option(help="Record the race in this file, for replay.")
    ] = None,
    save_cache: Annotated[
        Path | None,
        typer.Option(
            "--save-cache",
            help="Save the KV cache of the first column that keeps one in this file, at its end.",
        ),
    ] = None,
    restore_cache: Annotated[
        Path | None,
        typer.Option(
            "--restore-cache",
            help="Begin with the KV cache in this file: what the prompt has in common with the "
            "saved text is not computed again.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    text = read_input() if prompt == "-" else as_utf8(prompt)
    own = grammar_from_file(grammar) if grammar else None
    columns = tuple(parse_column(name, own) for name in column)
    request = Request(
        text,
        max_new_tokens,
        choosing.sampling,
        not raw,
        tuple(map(as_utf8, stop)),
        context,
        top=top,
        ignore_eos=ignore_eos,
        thinking=thinking,
    )
    entered = Race(
        request, columns, target.spec, save_cache=save_cache, restore_cache=restore_cache
    )
    for file in filter(None, (record, save_cache)):
        require_folder(file)
    if save_cache is not None and entered.saved_column is None:
        raise DerbyError("No column here keeps a cache to be saved: add kv.")
    board, events = Scoreboard(columns), list[Event]()
    with _interrupt(board) as interrupted, live(board, as_json=as_json) as draw:

        def add(event: Event) -> None:
            events.append(event)
            board.add(event)
            draw(event)

        InlineHost().run(entered, add, interrupted.is_set)
    if not as_json and any(score.state != "failed" or score.steps for score in board.scores):
        conclude(board)  # else the sentences at the end say all there is
    if record is not None:
        save(recorded(request, columns, entered.target, events), record)
    if interrupted.is_set():
        raise KeyboardInterrupt  # ends as any other command that is interrupted
    failures = {score.message for score in board.scores if score.state == "failed"}
    if failures:
        raise DerbyError("\n".join(sorted(failures)))


@contextmanager
def _interrupt(board: Scoreboard) -> Iterator[threading.Event]:
    """Is set by Ctrl-C once a column has written something: the race then stops where it is and
    ends as usual. Before that, and at the second time, Ctrl-C raises KeyboardInterrupt.
    """
    interrupted = threading.Event()

    def handle(_signal: int, _frame: FrameType | None) -> None:
        if interrupted.is_set() or not any(score.steps for score in board.scores):
            raise KeyboardInterrupt
        interrupted.set()

    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # else a shell has it ignored
        signal.signal(signal.SIGINT, handle)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
