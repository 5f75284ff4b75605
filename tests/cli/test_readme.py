"""What README.md and the other pages tell people to type exists: commands with their options and
columns, Make's targets; and the files that they link to.
"""

import re
import shlex
from collections.abc import Iterator
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
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))
OWN = GrammarSource("regex", "a+", "own")

launched = typer.Typer(add_completion=False)
launched.command()(launch.main)
COMMANDS = {
    "python -m backend": typer.main.get_command(backend),
    "python app.py": typer.main.get_command(launched),
    "python -m experiments": typer.main.get_command(experiments),
}


def snippets(page: Path) -> Iterator[str]:
    """The lines of a page's indented blocks, joined where they go on, without comments; and what
    stands between backticks.
    """
    text = page.read_text(encoding="utf-8").replace("\\\n        ", " ")
    indented = re.compile(r"^ {4}.*$", re.MULTILINE)
    for line in indented.findall(text):
        yield line.partition(" #")[0].strip()
    for span in re.findall(r"`([^`]+)`", indented.sub("", text)):
        yield " ".join(span.split())


SNIPPETS = sorted({line for page in PAGES for line in snippets(page)})


def typed(program: str) -> list[tuple[str, list[str]]]:
    """Every line that runs the program, and its arguments; without the file that its output goes
    to.
    """
    pattern = re.compile(rf"^(?:\S*/)?{re.escape(program)}(?: (.*))?$")
    matches = ((line, pattern.match(line)) for line in SNIPPETS)
    return [
        (line, shlex.split((match[1] or "").partition(" > ")[0]))
        for line, match in matches
        if match
    ]


LINES = [(command, *line) for start, command in COMMANDS.items() for line in typed(start)]


def parse(command: click.Command, arguments: list[str]) -> click.Context:
    """The arguments as click reads them, subcommands too; nothing runs. Raises click's errors."""
    context = click.Context(command)
    if isinstance(command, click.Group):
        _, inner, rest = command.resolve_command(context, arguments)
        assert inner is not None
        return parse(inner, rest)
    return command.make_context(command.name, list(arguments))


def options(command: click.Command) -> set[str]:
    """The names of a command's options, and of its subcommands'."""
    names = {name for parameter in command.params for name in parameter.opts}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            _, inner, _ = command.resolve_command(context, [name])
            assert inner is not None
            names |= options(inner)
    return names


@pytest.mark.parametrize(("command", "line", "arguments"), LINES, ids=[line[1] for line in LINES])
def test_what_is_typed_is_a_command_with_such_options(
    command: click.Command, line: str, arguments: list[str]
) -> None:
    if arguments in (["--help"], ["NAME"]) or (isinstance(command, click.Group) and not arguments):
        return
    columns = parse(command, arguments).params.get("column") or ()
    for column in [columns] if isinstance(columns, str) else columns:
        if column != "repeat":  # the strategy that docs/extend.md shows how to write
            parse_column(column, OWN)


def test_options_that_stand_alone_are_some_command_s() -> None:
    known = set[str]().union(*map(options, COMMANDS.values())) | {"--help"}
    alone = [line.split() for line in SNIPPETS if re.match(r"-c |--[a-z][\w-]*( |$)", line)]
    assert len(alone) > 5
    for option, *value in alone:
        assert option in known
        if option == "-c":
            parse_column(value[0], OWN)


def test_make_has_such_targets_and_variables() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):(?!=)", makefile, re.MULTILINE))
    variables = set(re.findall(r"\$\((\w+)\)", makefile))
    words = {word for _, arguments in typed("make") for word in arguments}
    assert {"make run", "make test"} <= set(snippets(PAGES[0])), "a newcomer's two commands"
    assert {word for word in words if "=" not in word} <= targets
    assert {word.partition("=")[0] for word in words if "=" in word} <= variables
    assert set(re.findall(r"^# make (\w+)", makefile, re.MULTILINE)) <= targets


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_and_pictures_lead_to_files_that_are_there(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not link.startswith(("https:", "http:", "#")):
            assert (page.parent / link.partition("#")[0]).exists(), link


def test_a_wrong_line_is_noticed_and_there_are_lines_to_check() -> None:
    """The checks above would let nothing pass that click or the registries refuse."""
    first = {arguments[0] for _, _, arguments in LINES if arguments}
    assert {"race", "tune", "train", "grammar", "bench", "--share"} <= first
    for wrong in (["rase", "x"], ["race"], ["race", "x", "--warp"], ["bench", "--limit", "many"]):
        with pytest.raises(click.ClickException):
            parse(COMMANDS["python -m backend"], wrong)
    with pytest.raises(click.ClickException):
        parse(COMMANDS["python app.py"], ["--warp"])
