"""How results are printed: one line a result, one column a field."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

#: Fields that are words; figures stand at the right.
WORDS = ("column", "grammar", "schema", "setting", "category", "peer")


def results_table(title: str, results: Sequence[Any]) -> Table:
    """A table of dataclass instances of one kind."""
    table = Table(title=title)
    for name in asdict(results[0]):
        table.add_column(name.replace("_", " "), justify="left" if name in WORDS else "right")
    for result in results:
        table.add_row(*(_text(value) for value in asdict(result).values()))
    return table


def _text(value: Any) -> str:
    """A figure in three digits, a range of two as "low-high"."""
    match value:
        case float():
            return f"{value:.3g}" if value < 100 else f"{value:.0f}"
        case (low, high):
            return f"{low:.2f}-{high:.2f}"
        case _:
            return str(value)
