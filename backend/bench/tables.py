"""How results are printed: one line a result, one column a field."""

from collections.abc import Sequence
from typing import Any, get_type_hints

from rich.table import Table

from backend.results.figures import NONE, Figure

#: Fields that are words; figures stand at the right.
WORDS = ("column", "grammar", "schema", "setting", "category", "peer", "curve")


def results_table(title: str, results: Sequence[Any]) -> Table:
    """A table of dataclass instances of one kind, as `headings` and `cells` have it."""
    table = Table(title=title)
    for name, heading in zip(_fields(results[0]), headings(type(results[0])), strict=True):
        table.add_column(heading, justify="left" if name in WORDS else "right")
    for result in results:
        table.add_row(*cells(result))
    return table


def headings(kind: type) -> list[str]:
    """What stands above each field of a dataclass of results.

    A field of the type `Annotated[float, figure(NAME)]` holds that figure, in its unit, and is
    headed and written as it is everywhere else.
    """
    figures = {
        name: _figure(hint) for name, hint in get_type_hints(kind, include_extras=True).items()
    }
    return [known.heading if known else name.replace("_", " ") for name, known in figures.items()]


def cells(result: Any) -> list[str]:
    """The fields of a result as they are written below their headings."""
    return [
        known.unit.cell(getattr(result, name)) if known else _text(getattr(result, name))
        for name, known in ((name, _figure(hint)) for name, hint in _fields(result).items())
    ]


def _fields(result: Any) -> dict[str, Any]:
    return get_type_hints(type(result), include_extras=True)


def _figure(hint: Any) -> Figure | None:
    annotations = getattr(hint, "__metadata__", ())
    return next((each for each in annotations if isinstance(each, Figure)), None)


def _text(value: Any) -> str:
    """A number in three digits, a range of two as "low-high", a dash for what is unknown."""
    match value:
        case float():
            return f"{value:.3g}" if value < 100 else f"{value:.0f}"
        case (low, high):
            return f"{low:.2f}-{high:.2f}"
        case None:
            return NONE
        case _:
            return str(value)
