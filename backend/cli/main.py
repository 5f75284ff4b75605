"""The command line: python -m backend COMMAND.

What a user can fix ends with one sentence on stderr and exit code 2.
"""

import logging

import click
import typer
from typer.core import TyperGroup

from backend.cli import snapshot
from backend.cli.bench import bench
from backend.cli.console import complain, warn
from backend.cli.grammar import grammar
from backend.cli.race import race
from backend.cli.setup import setup
from backend.cli.train import train
from backend.cli.tune import tune
from backend.cli.verify import verify
from backend.engines.registry import plugin_problems
from backend.errors import DerbyError


class Commands(TyperGroup):
    """Runs a command; a DerbyError is one sentence and exit code 2."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except DerbyError as error:
            complain(str(error))
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=Commands,
    help="Decode Derby: one prompt, several decoding strategies, honest clocks.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (setup, race, grammar, verify, bench, tune, train):
    app.command()(command)
app.add_typer(snapshot.app, name="snapshot")


@app.callback()
def report_plugins() -> None:
    """Print, before a command runs, a line on each plug-in that was left out."""
    for problem in plugin_problems():
        warn(problem)


def main() -> None:
    """Run the command line."""
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    app()
