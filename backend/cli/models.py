"""python -m backend models [list | rm]."""

import json
import time
from typing import Annotated

import typer
from rich.table import Column as TableColumn
from rich.table import Table

from backend.cli.console import out
from backend.cli.options import AsJson
from backend.models.hub_quota import fetched_models, remove_fetched

app = typer.Typer(help="Models that were downloaded from the Hub.", add_completion=False)


@app.callback(invoke_without_command=True)
def alone(context: typer.Context) -> None:
    """List the models if no subcommand is given."""
    if context.invoked_subcommand is None:
        list_all()


@app.command(name="list")
def list_all(as_json: AsJson = False) -> None:
    """List the models, the last used first. Sizes include converted copies."""
    models = fetched_models()
    if as_json:
        found = [{"name": m.name, "bytes": m.size, "used": m.used} for m in models]
        print(json.dumps(found))
        return
    if not models:
        out.print("No model was downloaded from the Hub.")
        return
    table = Table(TableColumn("model", no_wrap=True), "MB", "last used")
    for model in models:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(model.used))
        table.add_row(model.name, f"{model.size / 1e6:,.1f}", used)
    out.print(table)


@app.command(name="rm")
def remove(names: Annotated[list[str], typer.Argument(help="Hub ids of models.")]) -> None:
    """Remove models and their converted copies."""
    for name in names:
        freed = remove_fetched(name)
        out.print(
            f"Removed {name}: {freed / 1e6:,.1f} MB are free again.", highlight=False, markup=False
        )
