"""The command line: python -m backend COMMAND.

A command's module is imported only when it runs, so the list of commands appears at once. A user's
mistake ends with one sentence on stderr and exit code 2.
"""

import logging
import os
import sys
from importlib import import_module
from io import TextIOWrapper

import click
import typer
from typer.core import TyperGroup

from backend.cli.console import complain, warn
from backend.errors import DerbyError, explain

#: Each command's module, and what it is for.
COMMANDS = {
    "setup": ("setup", "Download and prepare everything that the app needs, once."),
    "race": ("race", "Race several strategies on one prompt."),
    "replay": ("race", "Print a recorded race: texts and figures, a table, or a picture."),
    "grammar": ("setup", "Check a grammar, and how much of a text it accepts."),
    "verify": (
        "bench",
        "Check that every lossless column writes the text of KV reuse; exit code 1 if not.",
    ),
    "bench": (
        "bench",
        "Measure every column alone, warmed up, on a set of prompts. Can be continued.",
    ),
    "tune": (
        "bench",
        "Find the fastest settings here: pass times, predicted and measured speed-ups (minutes).",
    ),
}

#: What is not a fault of ours: how commands end, and a reader of our output that has gone.
EXPECTED = (click.exceptions.Exit, click.Abort, click.exceptions.NoArgsIsHelpError, BrokenPipeError)


def load_command(name: str) -> click.Command:
    """Import a command: the function of that name in its module."""
    module, purpose = COMMANDS[name]
    function = getattr(import_module(f"backend.cli.{module}"), name)
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name, help=purpose)(function)
    return typer.main.get_command(single)


class Commands(TyperGroup):
    """Lists the commands by name, imports the one that runs. What a user can fix is one sentence
    and exit code 2; any other error one sentence, the traceback in the log, and exit code 1.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command that was added, or what the list says of one; that is nothing to run."""
        if cmd_name in COMMANDS:
            _, purpose = COMMANDS[cmd_name]
            return click.Command(cmd_name, help=purpose)
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name in COMMANDS else command, rest

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except DerbyError as error:
            complain(error.with_place)
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


@app.callback()
def report_plugins() -> None:
    """Print, before a command runs, a line on each plug-in that was left out."""
    from backend.engines.registry import plugin_problems as engine_problems
    from backend.strategies.registry import plugin_problems as strategy_problems

    for problem in (*engine_problems(), *strategy_problems()):
        warn(problem)


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
