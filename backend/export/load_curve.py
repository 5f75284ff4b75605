"""What load does to speculation, as a picture: the acceptance at which guesses break even, over the
number of requests at once, and what acceptance the columns have.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from backend.export.plot import END, HEIGHT, LEFT, LEGEND, SIZE, TOP, WIDTH, Plot, entry
from backend.export.svg import CURVE, INK, disc, line, picture, text

TITLE = "Acceptance at which guesses break even, by the number of requests at once"


def drawn(chart: Mapping[str, Any]) -> str:
    """What `load_chart` of the results knows as SVG."""
    requests = chart["requests"]
    plot = Plot(requests[-1], 1.0)
    titles = ("requests at once (log scale)", "acceptance")
    parts = [*plot.axes(requests, (0, 0.25, 0.5, 0.75, 1), titles, "{:.0%}".format)]
    for guesses, evens in chart["lines"]:
        parts += _even(plot, requests, guesses, evens)
    for number, mark in enumerate(chart["marks"], 1):
        parts += _level(plot, number, mark)
    said = "; ".join(f"{mark['name']}: {mark['sentence']}" for mark in chart["marks"])
    return picture(WIDTH, HEIGHT, TITLE, f"{said}. {chart['note']}", parts)


def _even(
    plot: Plot, requests: list[int], guesses: int, evens: list[float | None]
) -> Iterator[str]:
    """A line of one number of guesses; it ends where no acceptance pays any more."""
    known = [(b, even) for b, even in zip(requests, evens, strict=True) if even is not None]
    if not known:
        return
    yield line([plot.at(b, even) for b, even in known], CURVE, 2)
    for b, even in known:
        tip = f"k={guesses}: breaks even at an acceptance of {even:.0%} with {b} at once"
        yield disc(plot.at(b, even), 3.5, CURVE, tip, hollow=True)
    x, y = plot.at(*known[-1])
    yield text(x - 4, y - 7, f"k={guesses}", SIZE - 2, anchor="end")


def _level(plot: Plot, number: int, mark: Mapping[str, Any]) -> Iterator[str]:
    """The acceptance of a column, as far as it has one."""
    known = mark["acceptance"] is not None
    shown = f", {mark['acceptance']:.0%}" if known else ""
    yield entry(number, f"{mark['name']}{shown}", 26)
    yield text(LEGEND, TOP + (number - 0.5) * 26 + 4, str(number), SIZE, INK, bold=True)
    if known:
        y = plot.y(mark["acceptance"])
        yield line(((LEFT, y), (END, y)), INK, 1, "5 4")
        yield text(END + 4, y + 4, str(number), SIZE, INK, bold=True)
