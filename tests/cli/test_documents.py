"""What the pages tell people to type is a command with such options and columns."""

import re
import shlex
from pathlib import Path

import click
import pytest
import typer

import app as launch
from backend.cli.main import app as backend
from backend.grammar.sources import GrammarSource
from backend.strategies.column import parse_column
from experiments.__main__ import app as experiments

ROOT = Path(__file__).resolve().parents[2]
OWN = GrammarSource("regex", "a+", "own")
launched = typer.Typer(add_completion=False)
launched.command()(launch.main)
COMMANDS = {
    "python -m backend": typer.main.get_command(backend),
    "python app.py": typer.main.get_command(launched),
    "python -m experiments": typer.main.get_command(experiments),
}
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
TEXT = "\n".join(page.read_text(encoding="utf-8").replace("\\\n        ", " ") for page in PAGES)
LINES = [
    (command, shlex.split(line.partition(" > ")[0], comments=True))
    for program, command in COMMANDS.items()
    for line in re.findall(rf"^ {{4}}(?:\S*/)?{re.escape(program)} (.+)$", TEXT, re.MULTILINE)
]


def parse(command: click.Command, arguments: list[str]) -> click.Context:
    """The arguments as click reads them, subcommands too; nothing runs. Raises click's errors."""
    context = click.Context(command)
    if isinstance(command, click.Group):
        _, inner, rest = command.resolve_command(context, arguments)
        assert inner is not None
        return parse(inner, rest)
    return command.make_context(command.name, list(arguments))


@pytest.mark.parametrize(("command", "arguments"), LINES, ids=[" ".join(line) for _, line in LINES])
def test_what_is_typed_is_a_command_with_such_options(
    command: click.Command, arguments: list[str]
) -> None:
    columns = parse(command, arguments).params.get("column") or ()
    for column in [columns] if isinstance(columns, str) else columns:
        if column != "repeat":  # the strategy that docs/extend.md shows how to write
            parse_column(column, OWN)


def test_there_are_lines_to_check() -> None:
    assert {"race", "tune", "train", "bench"} <= {line[0] for _, line in LINES if line}
