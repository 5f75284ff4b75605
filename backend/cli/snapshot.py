"""python -m backend snapshot save | load | info | list | rm."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Column as TableColumn
from rich.table import Table

from backend.cli.console import as_utf8, out, visible
from backend.cli.options import (
    AsJson,
    MaxNewTokens,
    Raw,
    Seed,
    Target,
    Temperature,
    unbundled,
)
from backend.cli.tables import summary, texts
from backend.errors import DerbyError
from backend.kvcache.snapshots import Info, default_folder
from backend.kvcache.sources import Visitor
from backend.racing.commands import Command, SaveColumn
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.racing.records import read_record
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import Column, parse_column
from backend.types import AnswerSoFar, Request, Sampling

app = typer.Typer(
    help="Save a column to disk and continue it exactly.",
    no_args_is_help=True,
    add_completion=False,
)

#: Whose caches one command keeps in memory: its own.
SCOPE = Visitor("command line")

Id = Annotated[str, typer.Argument(help="A snapshot's id.")]


@app.command()
@unbundled
def save(
    prompt: Annotated[str, typer.Argument(help="The prompt.")],
    target: Target,
    column: Annotated[str, typer.Option("--column", "-c", help="name[:setting=value,...]")] = "kv",
    max_new_tokens: MaxNewTokens = 32,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    raw: Raw = False,
    as_json: AsJson = False,
) -> None:
    """Run one column and save it at its end."""
    request = Request(as_utf8(prompt), max_new_tokens, Sampling(temperature, seed=seed), not raw)
    _run(Race(request, (parse_column(column),), target.spec), as_json=as_json, save=True)


@app.command()
def load(
    name: Id,
    max_new_tokens: Annotated[int, typer.Option(help="The most new tokens.")] = 32,
    save: Annotated[bool, typer.Option("--save", help="Save it again at its end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Continue a saved column exactly where it stopped."""
    request, column, target = read_record(default_folder().info(name).record)
    request = replace(request, max_new_tokens=max_new_tokens)
    race = Race(request, (column.limited(max_new_tokens),), target, (AnswerSoFar(snapshot=name),))
    _run(race, as_json=as_json, save=save)


@app.command()
def info(name: Id) -> None:
    """Print the contents of a snapshot as JSON."""
    print(json.dumps(asdict(default_folder().info(name)), indent=1))


@app.command(name="list")
def list_all(as_json: AsJson = False) -> None:
    """List the snapshots, newest first."""
    entries = default_folder().list()
    if as_json:
        print(json.dumps([asdict(entry) for entry in entries]))
        return
    table = Table(TableColumn("id", no_wrap=True), "saved", "MB", "tokens", "column", "prompt")
    for entry in entries:
        table.add_row(*_cells(entry))
    out.print(table)


@app.command()
def rm(names: Annotated[list[str], typer.Argument(help="Snapshots' ids.")]) -> None:
    """Remove snapshots."""
    for name in names:
        default_folder().remove(name)


def _cells(entry: Info) -> Sequence[str]:
    tokens = f"{entry.prompt_tokens} + {entry.answer_tokens}"
    prompt = escape(visible(str(entry.record.get("request", {}).get("prompt", ""))[:40]))
    column = str(entry.record.get("strategy", ""))
    return entry.id, entry.created[:19], f"{entry.bytes / 1e6:.1f}", tokens, column, prompt


def _run(race: Race, *, as_json: bool, save: bool) -> None:
    """Run the race's one column, print it, and save it if asked to."""
    models, race = LoadedModels(idle_warm_up=True), replace(race, scope=SCOPE)
    board, snapshot = _carried_out(race, race.columns, models), ""
    score = board.scores[0]
    if save:
        command = SaveColumn(race, 0, score.answer_so_far)
        snapshot = _carried_out(command, race.columns, models).scores[0].snapshot
    if as_json:
        found = {
            "column": race.columns[0].label,
            "tokens": score.tokens,
            "earlier": score.earlier,
            "reused": score.reused,
            "rows": score.rows,
            "text": score.text,
            "snapshot": snapshot,
        }
        print(json.dumps(found))
        return
    out.print(texts(board))
    out.print(summary(board))
    if snapshot:
        out.print(f"Saved as {snapshot}.", highlight=False)


def _carried_out(command: Command, columns: Sequence[Column], models: LoadedModels) -> Scoreboard:
    """The board of a command of one column. Raises DerbyError if that fails."""
    board = Scoreboard(columns)
    command.run(models, board.add, lambda: False)
    if board.scores[0].state == "failed":
        raise DerbyError(board.scores[0].message)
    return board
