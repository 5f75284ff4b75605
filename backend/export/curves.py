"""What forward passes cost, as a plot with a logarithmic x axis."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import hypot, log2, log10
from typing import Any

from backend.export.svg import (
    COLOURS,
    CURVE,
    INK,
    PANEL,
    RULE,
    SOFT,
    Point,
    disc,
    fitted,
    line,
    picture,
    text,
)

COSTS = "The time of a pass by the number of its rows"

RADIUS = 9

WIDTH, HEIGHT = 720, 346

#: The plot's edges, the room between its sides and what is drawn, and where the legend begins.
LEFT, END, TOP, FLOOR, INSET, LEGEND = 48, 470, 36, 282, 16, 500

SIZE = 13


@dataclass(frozen=True, slots=True)
class Plot:
    """`widest` and `most` are the largest values of either axis, `least` the smallest of x; that of
    y is 0.
    """

    widest: float
    most: float
    least: float = 1

    def x(self, value: float) -> float:
        across = END - LEFT - 2 * INSET
        width = log2(max(self.widest / self.least, 2))
        return LEFT + INSET + across * log2(max(value / self.least, 1)) / width

    def y(self, value: float) -> float:
        return FLOOR - (FLOOR - TOP) * value / self.most

    def at(self, x: float, y: float) -> Point:
        return self.x(x), self.y(y)

    def axes(
        self,
        xs: Sequence[int],
        ys: Sequence[float],
        titles: tuple[str, str],
        written: Callable[[float], str] = "{:g}".format,
    ) -> Iterator[str]:
        """A grid line for each of `ys`, a tick for each of `xs`; `titles` of x and y."""
        for value in ys:
            y = self.y(value)
            yield line(((LEFT, y), (END, y)), RULE if value else SOFT)
            yield text(LEFT - 7, y + 4, written(value), SIZE, anchor="end")
        for value in xs:
            x = self.x(value)
            yield line(((x, FLOOR), (x, FLOOR + 5)), SOFT)
            yield text(x, FLOOR + 20, f"{value:,}", SIZE, anchor="middle")
        yield text((LEFT + END) / 2, FLOOR + 42, titles[0], SIZE, anchor="middle")
        yield text(LEFT - 40, TOP - 18, titles[1], SIZE)


def _ticks(most: float) -> list[float]:
    """About five round numbers from 0 on."""
    unit = 10.0 ** (log10(most / 5) // 1)
    step = next(n * unit for n in (1, 2, 5, 10) if n * unit >= most / 5)
    return [i * step for i in range(int(most / step + 1e-9) + 1)]


def _entry(number: int, words: str, height: float) -> str:
    """A line of the legend; its mark is the caller's, left of it."""
    y = TOP + (number - 0.5) * height
    return text(LEGEND + 16, y + 4, fitted(words, WIDTH - LEGEND - 24, SIZE), SIZE, INK)


def draw_costs(costs: Mapping[str, Any]) -> str:
    """What `cost_curve` of the results knows as SVG."""
    points, marks = costs["points"], costs["marks"]
    widest = max(rows for rows, *_ in [*points, *([m["rows"]] for m in marks)])
    most = max([*(steps for _, steps, _ in points), *(max(m["tokens"], m["steps"]) for m in marks)])
    plot = Plot(widest, 1.08 * most)
    titles = ("rows in a pass (log scale)", "times as long")
    doubling = [2**n for n in range(int(log2(max(widest, 1))) + 1)]
    parts = [*plot.axes(doubling, _ticks(plot.most), titles), *_curve(plot, points)]
    parts += _marks(plot, marks)
    said = "; ".join(f"{mark['name']}: {mark['sentence']}" for mark in marks)
    return picture(WIDTH, HEIGHT, COSTS, f"{costs['note']} {said}", parts)


def _curve(plot: Plot, points: Sequence[Sequence[Any]]) -> Iterator[str]:
    """Between two widths the cost is a straight line, which the logarithmic scale bends."""
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
        yield _entry(number, mark["name"], height)
        yield from _numbered((LEGEND, TOP + (number - 0.5) * height), number, colour, "")
    for number, (place, mark) in enumerate(zip(taken, marks, strict=True), 1):
        tip = f"{mark['name']}: {mark['sentence']}"
        yield from _numbered(place, number, COLOURS[mark["pace"]], tip)


def _numbered(place: Point, number: int, colour: str, tip: str) -> Iterator[str]:
    yield disc(place, RADIUS, colour, tip)
    yield text(place[0], place[1] + 4, str(number), SIZE - 1, PANEL, "middle", bold=True)


def _free(wanted: Point, taken: Sequence[Point]) -> Point:
    """The nearest place in the plot where a mark hides no other."""
    steps = [n * RADIUS for n in range(-24, 25)]
    around = sorted(product(steps, steps), key=lambda move: hypot(*move))
    places = ((wanted[0] + right, wanted[1] + down) for right, down in around)
    inside = ((x, y) for x, y in places if LEFT + RADIUS <= x <= END and TOP <= y <= FLOOR)
    apart = 2 * RADIUS
    return next(p for p in inside if all(hypot(p[0] - q[0], p[1] - q[1]) >= apart for q in taken))
