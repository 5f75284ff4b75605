"""The command line: python -m backend COMMAND.

A user's mistake ends with one sentence on stderr and exit code 2.
"""

import logging
import os
import sys
from io import TextIOWrapper

import click
import typer
from typer.core import TyperGroup

from backend.cli.bench import bench, tune, verify
from backend.cli.console import complain
from backend.cli.race import race, replay
from backend.cli.setup import export_draft, grammar, setup
from backend.errors import DerbyError, explain

#: What is not a fault of ours: how commands end, and a reader of our output that has gone.
EXPECTED = (click.exceptions.Exit, click.Abort, click.exceptions.NoArgsIsHelpError, BrokenPipeError)


class Commands(TyperGroup):
    """What a user can fix is one sentence and exit code 2; any other error one sentence, the
    traceback in the log, and exit code 1.
    """

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except DerbyError as error:
            complain(str(error))
            raise typer.Exit(2) from None
        except EXPECTED:
            raise
        except click.ClickException as error:
            sentence = error.format_message()
            complain(sentence if sentence.endswith((".", "?")) else f"{sentence}.")
            raise typer.Exit(error.exit_code) from None
        except Exception as error:
            complain(explain(error))
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=Commands,
    help="Decode Derby: one prompt, several decoding strategies, honest clocks.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


for command in (setup, race, replay, export_draft, grammar, verify, bench, tune):
    app.command(command.__name__.replace("_", "-"))(command)


def main() -> None:
    """Run the command line."""
    # Not every terminal has every character that a model writes.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    # Bars and reports of transformers would stand between our sentences, and across the live table.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    app()
