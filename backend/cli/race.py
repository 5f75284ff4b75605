"""python -m backend race, replay: a race as it runs, and what it came to."""

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

import typer
from rich import box
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from backend.cli import options
from backend.cli.console import out, print_table, visible
from backend.errors import DerbyError
from backend.events import Event, to_json
from backend.export.picture import picture_of
from backend.export.tables import markdown
from backend.grammar.sources import grammar_from_file
from backend.models.files import BUILT_IN
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.records.file import load, require_folder, save
from backend.records.record import RaceRecord, recorded
from backend.results.figures import DASH, SUMMARY, factor, figure, rate
from backend.results.result import result_of
from backend.results.scoreboard import Scoreboard
from backend.results.sentences import doubt, headline, noise, outcome, state, why
from backend.results.texts import compare
from backend.strategies.column import parse_column
from backend.strategies.registry import usual_columns
from backend.types import Request, Sampling

#: Times a second that the table is drawn.
FRAMES = 8

STYLES = {
    "sampled": "",
    "drafted": "green",
    "bonus": "cyan",
    "forced": "magenta",
    "fixed": "dim",
}


def race(
    prompt: Annotated[str, typer.Argument(help='The prompt; "-" reads it from standard input.')],
    model: options.Model = BUILT_IN,
    engine: options.Engine = "openvino",
    precision: options.Precision = "",
    device: options.Device = "CPU",
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    seed: options.Seed = 0,
    column: options.Columns = [],
    max_new_tokens: options.MaxNewTokens = 128,
    fixed_length: options.FixedLength = False,
    thinking: options.Thinking = "",
    raw: options.Raw = False,
    stop: Annotated[list[str], typer.Option(help="Stop before this string. Repeatable.")] = [],
    context: Annotated[int, typer.Option(help="The most tokens of context; 0: no limit.")] = 0,
    grammar: Annotated[
        Path | None, typer.Option(help="A .lark, .schema.json, .regex or .gbnf file: grammar=own.")
    ] = None,
    top: Annotated[int, typer.Option(help="How many likely tokens to record at each place.")] = 0,
    record: Annotated[Path | None, typer.Option(help="Record the race here, for replay.")] = None,
    save_cache: Annotated[
        Path | None, typer.Option(help="Save the KV cache of the first column that keeps one here.")
    ] = None,
    restore_cache: Annotated[
        Path | None, typer.Option(help="Begin with the KV cache in this file, as far as it fits.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Race several strategies on one prompt."""
    if prompt == "-":
        prompt = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    source = grammar_from_file(grammar) if grammar else None
    columns = tuple(parse_column(name, source) for name in column or usual_columns(model))
    request = Request(
        prompt,
        max_new_tokens,
        Sampling(temperature, top_k, top_p, seed, min_p, repetition_penalty),
        not raw,
        tuple(stop),
        context,
        top=top,
        ignore_eos=fixed_length,
        thinking=thinking,
    )
    target = options.target_of(model, engine, precision, device)
    entered = Race(request, columns, target, save_cache=save_cache, restore_cache=restore_cache)
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

        entered.run(LoadedModels(), add, interrupted.is_set)
    if not as_json and any(score.state != "failed" or score.steps for score in board.scores):
        conclude(board)  # else the sentences at the end say all there is
    if record is not None:
        save(recorded(request, columns, entered.target, events), record)
    if interrupted.is_set():
        raise KeyboardInterrupt  # ends as any other command that is interrupted
    failures = [score.message for score in board.scores if score.state == "failed"]
    if failures and (column or len(failures) == len(columns)):  # else the model cannot run them
        raise DerbyError("\n".join(sorted({*failures})))


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


def replay(
    file: Annotated[Path, typer.Argument(help="A file from race --record, or saved by the page.")],
    other: Annotated[
        Path | None, typer.Argument(help="A second one, for a table of both side by side.")
    ] = None,
    form: Annotated[
        Literal["", "markdown", "svg"], typer.Option("--as", help="Print a table, or a picture.")
    ] = "",
) -> None:
    """Print a recorded race: texts and figures, a table, or a picture; or two in one table."""
    record = load(file)
    if other is not None:
        if form:
            raise DerbyError("Two races are printed as one table alone: leave --as out.")
        contrast(record, load(other))
    elif form:
        print(visible(picture_of(record) if form == "svg" else markdown(record)), end="")
    else:
        conclude(record.board)
        out.print(f"Recorded: {visible(record.place)}.", style="dim")


def contrast(*pair: RaceRecord) -> None:
    """Print two races side by side, columns of one name in a line, and in what the two differ.
    Raises DerbyError for two of different prompts or settings.
    """
    asked = [asdict(replace(record.request, top=0)) for record in pair]
    if differing := [key for key in asked[0] if asked[0][key] != asked[1][key]]:
        raise DerbyError(
            f"The two races were asked differently ({', '.join(differing)}): record both with one "
            "prompt and the same settings."
        )
    boards = [record.board for record in pair]
    results = [result_of(board) for board in boards]
    rows = [{row.name: row for row in result.rows} for result in results]
    lines = list[list[str]]()
    for name in rows[0] | rows[1]:
        a, b = both = [each.get(name) for each in rows]
        speeds = [rate(row.rate) if row and row.rate else DASH for row in both]
        speedups = [figure("speedup").cell(row) if row else DASH for row in both]
        ratio = text = DASH
        if a and b and a.rate and b.rate:
            ratio, texts = factor(b.rate / a.rate), compare(a.score, b.score)
            text = "same text" if texts.whole else "same so far"
            if texts.parted:
                text = f"differs at {texts.unit} {texts.agreed + 1}"
        lines.append([name, *speeds, ratio, *speedups, text])
    unit = f"{results[0].unit}s/s"
    heads = ("column", f"{unit} A", f"{unit} B", "B / A", "speed-up A", "speed-up B", "text")
    print_table("A and B", heads, lines)
    facts = [dict(record.versions) | asdict(record.target) for record in pair]
    for side, record, board, own, other in zip("AB", pair, boards, facts, facts[::-1], strict=True):
        parts = [f"{key} {value}" for key, value in own.items() if value != other.get(key)]
        parts = [f"{side}: {record.place}", *parts, noise(board.others)]
        out.print(visible("; ".join(filter(None, parts))), style="dim")


@contextmanager
def live(board: Scoreboard, *, as_json: bool) -> Iterator[Callable[[Event], None]]:
    """What to call with each event: it prints the event as JSON, or draws the table anew, a few
    times a second, which takes the race's time, though no clock's.
    """
    if as_json:
        yield lambda event: print(json.dumps(to_json(event)), flush=True)
        return
    latest = 0.0

    def draw(_event: Event) -> None:
        nonlocal latest
        if time.monotonic() - latest > 1 / FRAMES:
            table.update(board.preparing or summary(board), refresh=True)
            latest = time.monotonic()

    with Live(console=out, auto_refresh=False, transient=True) as table:
        yield draw


def conclude(board: Scoreboard) -> None:
    """Print every text, and the table below."""
    out.print(texts(board))
    out.print(summary(board))


def summary(board: Scoreboard) -> Table:
    """The result above one line a column: how it ended, timings and their causes."""
    result = result_of(board)
    table = Table(
        caption=visible(doubt(board, result)),
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        row_styles=["dim"] if result.doubt == "noisy" else None,
    )
    table.add_column("column", min_width=13)
    table.add_column("state", min_width=11)
    figures = [f for f in map(figure, SUMMARY) if any(f.value(r) is not None for r in result.rows)]
    for each in figures:
        heading = each.title.replace(", ", " ").replace(" ", "\n")
        table.add_column(heading, justify="right", no_wrap=True, min_width=4)
    for row in result.rows:
        table.add_row(visible(row.name), state(row), *(each.cell(row) for each in figures))
    return table


def texts(board: Scoreboard) -> Group:
    """The headline, and every column's text below its name and its sentences; a program's values
    below, as JSON.
    """
    result = result_of(board)
    parts: list[Text] = []
    for row in result.rows:
        parts.append(Text(f"\n{visible(row.name)}", style="bold"))
        for sentence in filter(None, (outcome(board, row), why(board, row))):
            parts[-1].append(f"  {visible(sentence.removesuffix('.'))}.", style="not bold dim")
        body = Text()
        for origin, piece in row.score.spans:
            body.append(visible(piece), style=STYLES[origin])
        parts.append(body)
        if row.score.values:
            parts.append(Text(visible(json.dumps(row.score.values, ensure_ascii=False))))
    if out.is_terminal:
        parts.append(
            Text.assemble("\n", *((f"{origin}  ", style) for origin, style in STYLES.items()))
        )
    return Group(*parts, Text(f"\n{visible(headline(board, result))}", style="bold"))
