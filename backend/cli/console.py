"""Where the command line prints: results on standard output, everything else on standard error."""

import sys

from rich.console import Console

# Piped tables are read in files and logs, which are wider than the 80 columns rich assumes.
out = Console(width=None if sys.stdout.isatty() else 160)
err = Console(stderr=True)


def say(text: str) -> None:
    """Print what takes time now."""
    err.print(text, style="dim", highlight=False)


def complain(sentence: str) -> None:
    """Print a sentence on what the user can fix, on a line of its own however long it is."""
    err.print(sentence, style="bold red", highlight=False, markup=False, soft_wrap=True)


def warn(sentence: str) -> None:
    """Print, on a line of its own, a sentence on what was left out."""
    err.print(sentence, style="yellow", highlight=False, markup=False, soft_wrap=True)
