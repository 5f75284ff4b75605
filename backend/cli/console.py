"""Where the command line prints: results on standard output, everything else on standard error."""

import re
import sys

from rich.console import Console

#: Control characters but tabs and line feeds.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

# Piped tables are read in files and logs, which are wider than the 80 columns rich assumes.
out = Console(width=None if sys.stdout and sys.stdout.isatty() else 160)
err = Console(stderr=True)


def say(text: str) -> None:
    """Print what takes time now."""
    err.print(text, style="dim", highlight=False)


def complain(sentence: str) -> None:
    """Print a sentence about a mistake of the user's, on one line however long it is."""
    err.print(sentence, style="bold red", highlight=False, markup=False, soft_wrap=True)


def visible(text: str) -> str:
    """`text` without what a terminal would obey: models and records may hold escape sequences."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)
