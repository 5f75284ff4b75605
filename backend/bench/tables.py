"""How results are printed: one line a result, one column a field."""

from collections.abc import Sequence
from typing import Any, get_type_hints

from rich.table import Table

from backend.bench.summary import ALL, ColumnResult
from backend.results.figures import DASH, FEW, NONE, Figure

#: Fields that are words; figures stand at the right.
WORDS = (
    "column",
    "clock",
    "grammar",
    "schema",
    "setting",
    "category",
    "peer",
    "curve",
    "model",
    "machine",
)

#: Fields that are left out where all hold this.
USUAL = {"clock": "own", "category": "all", "machine": "all"}


def results_table(title: str, results: Sequence[Any]) -> Table:
    """A table of dataclass instances of one kind, as `headings` and `cells` have it."""
    left_out = unshown(results)
    every = zip(
        _fields(results[0]),
        headings(type(results[0])),
        *(cells(result) for result in results),
        strict=True,
    )
    shown = [each for each in every if each[0] not in left_out]
    table = Table(title=title)
    for name, heading, *column in shown:
        if name in WORDS:
            # A name's words stay whole.
            words = " ".join(column).replace(",", " ").split()
            table.add_column(heading, overflow="fold", min_width=min(12, max(map(len, words))))
        else:
            table.add_column(heading, justify="right", min_width=max(map(len, column)))
    for cell in zip(*(column for _, _, *column in shown), strict=True):
        table.add_row(*cell)
    return table


def by_category(found: Sequence[ColumnResult]) -> str:
    """One model's results in Markdown, as Spec-Bench and SPEED-Bench print theirs: a line a column,
    a cell a category. A cell has the speed-up over KV reuse with its 95 % interval, tokens per
    pass, and the accepted share of the guesses.
    """
    found = [each for each in found if each.machine == ALL]
    prompts = {each.category: each.prompts for each in found}
    own = {(each.column, each.category): _cell(each) for each in found}
    table = [["column", "text equal", *(f"{name} ({n})" for name, n in prompts.items())]]
    for each in (each for each in found if each.category == ALL):
        line = [own.get((each.column, name), NONE) for name in prompts]
        table.append([each.column, f"{each.equal} of {each.prompts}", *line])
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    table.insert(1, ["-" * width for width in widths])
    return "\n".join(f"| {' | '.join(map(str.ljust, line, widths))} |" for line in table)


def _cell(result: ColumnResult) -> str:
    """What is known of the speed-up, tokens per pass and acceptance."""
    low, high = result.interval or (1.0, 1.0)
    interval = f" ({low:.2f}-{high:.2f})" if low < high else ""  # KV reuse over itself has none
    known = [f"{result.speedup:.2f}{interval}" if result.speedup else NONE]
    known += [] if result.tokens_per_forward is None else [f"{result.tokens_per_forward:.2f}"]
    return ", ".join([*known, *([] if result.acceptance is None else [f"{result.acceptance:.0%}"])])


def unshown(results: Sequence[Any]) -> set[str]:
    """The fields that say of all results what they usually say, and those that are unknown of all;
    the model where there is one.
    """
    left_out = {
        name
        for name, usual in USUAL.items()
        if all(getattr(result, name, usual) == usual for result in results)
    }
    for name in _fields(results[0]) if results else ():
        if all(getattr(result, name) is None for result in results):
            left_out.add(name)
    one_model = len({getattr(result, "model", "") for result in results}) == 1
    return left_out | ({"model"} if one_model else set())


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
    figures = ((getattr(result, name), _figure(hint)) for name, hint in _fields(result).items())
    return [
        known.unit.cell(value) if known and value is not None else _text(value)
        for value, known in figures
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
            return f"{low:.2f}{DASH}{high:.2f}"
        case list():  # shares
            return ", ".join(f"{share:.0%}" for share in value[:FEW]) or NONE
        case None:
            return NONE
        case _:
            return str(value)
