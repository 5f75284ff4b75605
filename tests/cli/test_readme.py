"""What README.md and the other pages tell people to type exists: commands, options, columns; and
the files that they link to.
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

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = (
    *("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"),
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
)
OWN = GrammarSource("regex", "a+", "own")
BACKEND = typer.main.get_command(backend)


def page_command() -> click.Command:
    """The command line of app.py."""
    single = typer.Typer(add_completion=False)
    single.command()(launch.main)
    return typer.main.get_command(single)


PAGE = page_command()


def snippets(name: str) -> Iterator[str]:
    """The lines of a page's code blocks, joined where they go on, and what stands between
    backticks; without comments.
    """
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n        ", " ")
    fence = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
    indented = re.compile(r"^ {4}.*$", re.MULTILINE)
    prose = indented.sub("", fence.sub("", text))
    blocks = [*fence.findall(text), *indented.findall(fence.sub("", text))]
    for line in "\n".join(blocks).splitlines():
        yield line.partition(" #")[0].strip()
    for span in re.findall(r"`([^`]+)`", prose):
        yield " ".join(span.split())


def typed(start: str) -> list[tuple[str, list[str]]]:
    """Every distinct line that runs the program, with its arguments; without the file that its
    output goes to.
    """
    program = re.compile(rf"^(?:\S*/)?{start}(?: (.*))?$")
    found: dict[str, list[str]] = {}
    for name in PAGES:
        for line in snippets(name):
            if match := program.match(line):
                found[line] = shlex.split((match[1] or "").partition(" > ")[0])
    return list(found.items())


COMMANDS = {
    "python -m backend": BACKEND,
    r"python app\.py": PAGE,
    "python -m experiments": typer.main.get_command(experiments),
}
LINES = [(start, *line) for start in COMMANDS for line in typed(start) if line[1] != ["NAME"]]
MAKE_LINES = typed("make")


def context_of(command: click.Command, arguments: list[str]) -> click.Context:
    """The arguments as click reads them, subcommands too; nothing runs. Raises click's errors."""
    context = click.Context(command)
    if arguments == ["--help"]:
        return context
    if isinstance(command, click.Group) and command.invoke_without_command and not arguments:
        return context
    if isinstance(command, click.Group):
        _, inner, rest = command.resolve_command(context, arguments)
        assert inner is not None
        return context_of(inner, rest)
    return command.make_context(command.name, list(arguments))


def options(command: click.Command) -> set[str]:
    """The names of a command's options, and of its subcommands'."""
    names = {name for parameter in command.params for name in parameter.opts} | {"--help"}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for inner in command.list_commands(context):
            _, found, _ = command.resolve_command(context, [inner])
            assert found is not None
            names |= options(found)
    return names


def test_the_pages_name_commands_at_all() -> None:
    """So that a change of their form does not leave these tests with nothing to read."""
    first = {arguments[0] for _, _, arguments in LINES if arguments}
    assert {"race", "tune", "train", "grammar", "bench"} <= first
    assert sum(COMMANDS[start] is PAGE for start, _, _ in LINES) >= 2
    assert {arguments[0] for _, arguments in MAKE_LINES} >= {"run", "test", "verify"}


@pytest.mark.parametrize(("start", "line", "arguments"), LINES, ids=[line for _, line, _ in LINES])
def test_what_is_typed_is_a_command_with_such_options(
    start: str, line: str, arguments: list[str]
) -> None:
    if arguments or COMMANDS[start] is PAGE:
        parameters = context_of(COMMANDS[start], arguments).params
        columns = parameters.get("column") or ()
        for column in [columns] if isinstance(columns, str) else columns:
            parse_column(column, OWN)


@pytest.mark.parametrize(("line", "arguments"), MAKE_LINES, ids=[e[0] for e in MAKE_LINES])
def test_make_has_such_targets_and_variables(line: str, arguments: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):(?!=)", makefile, re.MULTILINE))
    variables = set(re.findall(r"\$\((\w+)\)", makefile))
    assert {each for each in arguments if "=" not in each} <= targets
    assert {each.partition("=")[0] for each in arguments if "=" in each} <= variables
    assert set(re.findall(r"^# make (\w+)", makefile, re.MULTILINE)) <= targets


@pytest.mark.parametrize("name", PAGES)
def test_links_and_pictures_lead_to_files_that_are_there(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if not link.startswith(("https:", "http:", "#")):
            assert ((ROOT / name).parent / link.partition("#")[0]).exists(), link


def test_the_readme_is_a_screen_and_a_half() -> None:
    """It had grown to 5,767 words, and nobody found the two commands to begin with."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 1500


def test_options_that_stand_alone_are_some_command_s() -> None:
    known = set[str]().union(*map(options, COMMANDS.values()))
    used = 0
    for name in PAGES:
        for line in snippets(name):
            words = line.split()
            if not words or not re.fullmatch(r"-c|--[a-z][\w-]*", words[0]):
                continue
            used += 1
            assert words[0] in known, line
            if words[0] == "-c":
                parse_column(words[1], OWN)
    assert used > 5


def test_a_wrong_line_is_noticed() -> None:
    """The checks above would let nothing pass that click or the registries refuse."""
    for wrong in (["rase", "x"], ["race"], ["race", "x", "--warp"], ["bench", "--limit", "many"]):
        with pytest.raises(click.ClickException):
            context_of(BACKEND, wrong)
    with pytest.raises(click.ClickException):
        context_of(PAGE, ["--warp"])
