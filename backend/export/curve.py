"""What forward passes cost, as a picture: the curve that the page draws, and where columns lie."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import ceil, hypot, log2, log10
from typing import Any

from backend.errors import DerbyError
from backend.export.card import BRAND, COLOURS, HEIGHT, INK, MARGIN, RIGHT, RULE, SOFT, WIDTH
from backend.export.card import heading as beginning
from backend.export.drawing import Disc, Drawing, Line, Shape, Text, cut
from backend.records.record import RaceRecord, board
from backend.results.charts import cost_curve

#: The ends of the plot, its bottom being 0; where the list of columns begins, and its lines' most.
LEFT, END, HIGHEST, FLOOR, LIST, TALLEST = 100, 660, 160, 540, 692, 56

RADIUS = 15


@dataclass(frozen=True, slots=True)
class Plane:
    """Where rows of a pass, on a log scale, and plain steps lie in the plot."""

    widest: float
    most: float

    def x(self, rows: float) -> float:
        return LEFT + 20 + (END - LEFT - 40) * log2(max(rows, 1)) / log2(self.widest)

    def y(self, steps: float) -> float:
        return FLOOR - (FLOOR - HIGHEST) * steps / self.most


def curve(record: RaceRecord) -> Drawing:
    """The curve of a record's race, with its columns. Raises DerbyError where it is not known."""
    costs = cost_curve(board(record))
    if costs is None:
        raise DerbyError(
            "What passes cost was not known in this race, so there is no curve: run `tune`, and "
            "then the race again."
        )
    points, marks = costs["points"], costs["marks"]
    widest = max(rows for rows, *_ in [*points, *([m["rows"]] for m in marks)])
    most = max([*(steps for _, steps, _ in points), *(max(m["tokens"], m["steps"]) for m in marks)])
    plane = Plane(max(widest, 2), 1.08 * most)
    shapes = [*beginning(record), *_axes(plane), *_curve(plane, points)]
    shapes += [*_marks(plane, marks), *_list(marks)]
    title = "What a forward pass costs, by the number of its rows"
    shapes.append(Text(MARGIN, 108, f"{title}, in plain steps", 30, INK, bold=True))
    return Drawing(f"Decode Derby: {title}.", WIDTH, HEIGHT, tuple(shapes))


def _axes(plane: Plane) -> Iterator[Shape]:
    for value in _ticks(plane.most):
        y = plane.y(value)
        yield Line(((LEFT, y), (END, y)), SOFT if value == 0 else RULE)
        yield Text(LEFT - 12, y + 8, cut(f"{value:g}", LEFT - 16, 24), 24, SOFT, "end")
    rows, stride = 1, 2 ** ceil(log2(plane.widest) / 7)
    while rows <= plane.widest:
        yield Line(((plane.x(rows), FLOOR), (plane.x(rows), FLOOR + 7)), SOFT)
        yield Text(plane.x(rows), FLOOR + 32, str(rows), 24, SOFT, "middle")
        rows *= stride
    yield Text((LEFT + END) / 2, FLOOR + 68, "rows in a pass (log scale)", 24, SOFT, "middle")


def _ticks(most: float) -> list[float]:
    """Some five round numbers from 0 on."""
    unit = 10.0 ** (log10(most / 7) // 1)
    step = next(n * unit for n in (1, 2, 5, 10) if n * unit >= most / 7)
    return [i * step for i in range(int(most / step + 1e-9) + 1)]


def _curve(plane: Plane, points: Sequence[Sequence[Any]]) -> Iterator[Shape]:
    """Between two widths the cost lies on a straight line, which the log scale bends."""
    path = [
        (plane.x(rows), plane.y(low + (high - low) * (rows - start) / (end - start)))
        for (start, low, _), (end, high, _) in pairwise(points)
        for rows in range(start, end, max(1, (end - start) // 32))
    ]
    last, steps, _ = points[-1]
    yield Line((*path, (plane.x(last), plane.y(steps))), BRAND, 4)
    for rows, steps, _ in points:
        yield Disc(plane.x(rows), plane.y(steps), 6, BRAND)


def _marks(plane: Plane, marks: Sequence[dict[str, Any]]) -> Iterator[Shape]:
    """What a column's pass costs; joined to it, in the same unit, the tokens that come of it."""
    taken: list[tuple[float, float]] = []
    for mark in marks:
        x, cost, colour = plane.x(mark["rows"]), plane.y(mark["steps"]), COLOURS[mark["pace"]]
        taken.append(_free(x, plane.y(mark["tokens"]), taken))
        yield Line(((x, cost), taken[-1]), colour, 3)
        yield Disc(x, cost, 6, colour)
    for number, (place, mark) in enumerate(zip(taken, marks, strict=True), 1):
        yield from _disc(*place, number, COLOURS[mark["pace"]])


def _free(x: float, y: float, taken: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The nearest place in the plot where a disc hides no other."""
    steps = [n * RADIUS for n in range(-24, 25)]
    around = sorted(product(steps, steps), key=lambda move: hypot(*move))
    places = ((x + right, y + down) for right, down in around)
    inside = ((x, y) for x, y in places if LEFT + RADIUS <= x <= END and HIGHEST <= y <= FLOOR)
    apart = 2 * RADIUS
    return next(p for p in inside if all(hypot(p[0] - q[0], p[1] - q[1]) >= apart for q in taken))


def _disc(x: float, y: float, number: int, colour: str) -> Iterator[Shape]:
    yield Disc(x, y, RADIUS, colour)
    yield Text(x, y + 7, str(number), 20, "#ffffff", "middle", bold=True)


def _list(marks: Sequence[dict[str, Any]]) -> Iterator[Shape]:
    """Which column a number is, and its tokens beside its cost."""
    height = min(TALLEST, (HEIGHT - MARGIN - 200) / max(len(marks), 1))
    yield Text(RIGHT, 168, "tokens per forward, its cost", 22, SOFT, "end")
    for number, mark in enumerate(marks, 1):
        y = 200 + (number - 0.5) * height
        figures = Text(RIGHT, y + 8, f"{mark['tokens']:.2f}, {mark['steps']:.2f}", 24, INK, "end")
        yield figures
        yield from _disc(LIST + RADIUS, y, number, COLOURS[mark["pace"]])
        name = cut(mark["name"], figures.box[0] - LIST - 52, 24, middle=True)
        yield Text(LIST + 40, y + 8, name, 24, INK)
