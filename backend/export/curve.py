"""What forward passes cost, as a picture: the curve, and where the columns lie."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from math import hypot
from typing import Any

from backend.errors import DerbyError
from backend.export.plot import (
    END,
    FLOOR,
    HEIGHT,
    LEFT,
    LEGEND,
    SIZE,
    TOP,
    WIDTH,
    Plot,
    caption,
    doubling,
    entry,
    ticks,
)
from backend.export.svg import COLOURS, CURVE, PANEL, Point, disc, line, picture, text
from backend.models.files import model_title
from backend.records.record import RaceRecord, board
from backend.results.charts import cost_curve

TITLE = "What a forward pass costs, by the number of its rows"
RADIUS = 9


def curve(record: RaceRecord) -> str:
    """The picture of a record's race. Raises DerbyError where its costs are not known."""
    costs = cost_curve(board(record))
    if costs is None:
        raise DerbyError(
            "What passes cost was not known in this race, so there is no curve: run `tune`, and "
            "then the race again."
        )
    target = record.target
    where = f"{model_title(target.name)} on {target.engine} {target.precision} ({target.device})"
    return drawn(costs, f"{where}, {record.made[:10]}, {record.machine.processor}")


def drawn(costs: Mapping[str, Any], of: str = "") -> str:
    """What `cost_curve` knows as SVG; `of` says what it is of, where nothing else does."""
    points, marks = costs["points"], costs["marks"]
    widest = max(rows for rows, *_ in [*points, *([m["rows"]] for m in marks)])
    most = max([*(steps for _, steps, _ in points), *(max(m["tokens"], m["steps"]) for m in marks)])
    plot = Plot(widest, 1.08 * most)
    titles = ("rows in a pass (log scale)", "plain steps")
    parts = [*plot.axes(doubling(widest), ticks(plot.most), titles), *_curve(plot, points)]
    parts += [*_marks(plot, marks), caption(of)]
    said = "; ".join(f"{mark['name']}: {mark['sentence']}" for mark in marks)
    return picture(WIDTH, HEIGHT, TITLE, f"{costs['note']} {said}", parts)


def _curve(plot: Plot, points: Sequence[Sequence[Any]]) -> Iterator[str]:
    """Between two widths the cost lies on a straight line, which the log scale bends."""
    path = [
        plot.at(rows, low + (high - low) * (rows - start) / (end - start))
        for (start, low, _), (end, high, _) in pairwise(points)
        for rows in range(start, end, max(1, (end - start) // 32))
    ]
    last, steps, _ = points[-1]
    yield line([*path, plot.at(last, steps)], CURVE, 2)
    for rows, steps, words in points:
        yield disc(plot.at(rows, steps), 3.5, CURVE, words, hollow=True)


def _marks(plot: Plot, marks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What a column's pass costs; joined to it, in the same unit, the tokens that come of it."""
    taken: list[Point] = []
    height = min(26, (FLOOR - TOP) / max(len(marks), 1))
    for number, mark in enumerate(marks, 1):
        colour, cost = COLOURS[mark["pace"]], plot.at(mark["rows"], mark["steps"])
        taken.append(_free(plot.at(mark["rows"], mark["tokens"]), taken))
        yield line((cost, taken[-1]), colour, 2, "3 3")
        yield disc(cost, 4, colour)
        yield entry(number, mark["name"], height)
        yield from _numbered((LEGEND, TOP + (number - 0.5) * height), number, colour, "")
    for number, (place, mark) in enumerate(zip(taken, marks, strict=True), 1):
        tip = f"{mark['name']}: {mark['sentence']}"
        yield from _numbered(place, number, COLOURS[mark["pace"]], tip)


def _numbered(place: Point, number: int, colour: str, tip: str) -> Iterator[str]:
    yield disc(place, RADIUS, colour, tip)
    yield text(place[0], place[1] + 4, str(number), SIZE - 1, PANEL, "middle", bold=True)


def _free(wanted: Point, taken: Sequence[Point]) -> Point:
    """The nearest place in the plot where a disc hides no other."""
    steps = [n * RADIUS for n in range(-24, 25)]
    around = sorted(product(steps, steps), key=lambda move: hypot(*move))
    places = ((wanted[0] + right, wanted[1] + down) for right, down in around)
    inside = ((x, y) for x, y in places if LEFT + RADIUS <= x <= END and TOP <= y <= FLOOR)
    apart = 2 * RADIUS
    return next(p for p in inside if all(hypot(p[0] - q[0], p[1] - q[1]) >= apart for q in taken))
