"""Where the command line prints: results on standard output, everything else on standard error."""

import re
import sys
from collections.abc import Iterable, Sequence
from functools import partial

from rich.console import Console
from rich.table import Table

#: Control characters but tabs and line feeds.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

# All is printed as it is: names of models, grammars and files may hold brackets, which rich takes
# for its markup. Piped tables are read in files and logs, wider than the 80 columns it assumes.
_console = partial(Console, markup=False, emoji=False, highlight=False)
out = _console(width=None if sys.stdout and sys.stdout.isatty() else 160)
err = _console(stderr=True)


def say(text: str) -> None:
    """Print what takes time now."""
    err.print(visible(text), style="dim")


def complain(sentence: str) -> None:
    """Print a sentence about a mistake of the user's, on one line however long it is."""
    err.print(visible(sentence), style="bold red", soft_wrap=True)


def visible(text: str) -> str:
    """`text` without what a terminal would obey: models and records may hold escape sequences."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


def print_table(title: str, headings: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Print lines of cells; the first column holds names, the others figures."""
    table = Table(title=visible(title))
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    for line in lines:
        table.add_row(*map(visible, line))
    out.print(table)
