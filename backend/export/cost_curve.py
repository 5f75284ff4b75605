"""What forward passes cost, drawn: a curve over the rows of a pass on a logarithmic axis, and the
columns on it.
"""

from collections.abc import Iterator, Mapping, Sequence
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

WIDTH, HEIGHT = 720, 346

#: The plot's edges, the room between its sides and what is drawn, and where the legend begins.
LEFT, END, TOP, FLOOR, INSET, LEGEND = 48, 470, 36, 282, 16, 500

#: Of letters, and of a numbered disc.
SIZE, RADIUS = 13, 9


def draw_costs(costs: Mapping[str, Any]) -> str:
    """What `cost_curve` of the results knows as SVG."""
    points, marks = costs["points"], costs["marks"]
    widest = max(rows for rows, *_ in [*points, *([m["rows"]] for m in marks)])
    most = max([*(steps for _, steps, _ in points), *(max(m["tokens"], m["steps"]) for m in marks)])

    def at(rows: float, times: float) -> Point:
        share = log2(max(rows, 1)) / log2(max(widest, 2))
        x = LEFT + INSET + (END - LEFT - 2 * INSET) * share
        return x, FLOOR - (FLOOR - TOP) * times / (1.08 * most)

    parts = list[str]()
    for times in _ticks(1.08 * most):
        _, y = at(1, times)
        parts += [line(((LEFT, y), (END, y)), RULE if times else SOFT)]
        parts += [text(LEFT - 7, y + 4, f"{times:g}", SIZE, anchor="end")]
    for rows in (2**n for n in range(int(log2(max(widest, 1))) + 1)):
        x, _ = at(rows, 0)
        parts += [line(((x, FLOOR), (x, FLOOR + 5)), SOFT)]
        parts += [text(x, FLOOR + 20, f"{rows:,}", SIZE, anchor="middle")]
    middle = (LEFT + END) / 2
    parts += [text(middle, FLOOR + 42, "rows in a pass (log scale)", SIZE, anchor="middle")]
    parts += [text(LEFT - 40, TOP - 18, "times as long", SIZE)]
    # Between two widths the cost is a straight line, which the logarithmic scale bends.
    path = [
        at(rows, low + (high - low) * (rows - start) / (end - start))
        for (start, low, _), (end, high, _) in pairwise(points)
        for rows in range(start, end, max(1, (end - start) // 32))
    ]
    parts += [line([*path, at(*points[-1][:2])], CURVE, 2)]
    parts += [disc(at(rows, steps), 3.5, CURVE, said, hollow=True) for rows, steps, said in points]
    # A column: its pass's cost, joined to the tokens that come of it, and a line of the legend.
    taken, height = list[Point](), min(26, (FLOOR - TOP) / max(len(marks), 1))
    for number, mark in enumerate(marks, 1):
        colour, cost = COLOURS[mark["pace"]], at(mark["rows"], mark["steps"])
        taken.append(_free(at(mark["rows"], mark["tokens"]), taken))
        parts += [line((cost, taken[-1]), colour, 2, "3 3"), disc(cost, 4, colour)]
        y = TOP + (number - 0.5) * height
        name = fitted(mark["name"], WIDTH - LEGEND - 24, SIZE)
        parts += [text(LEGEND + 16, y + 4, name, SIZE, INK)]
        parts += _numbered((LEGEND, y), number, colour, "")
    sentences = [f"{mark['name']}: {mark['sentence']}" for mark in marks]
    for number, (place, mark) in enumerate(zip(taken, marks, strict=True), 1):
        parts += _numbered(place, number, COLOURS[mark["pace"]], sentences[number - 1])
    title = "The time of a pass by the number of its rows"
    return picture(WIDTH, HEIGHT, title, f"{costs['note']} {'; '.join(sentences)}", parts)


def _ticks(most: float) -> list[float]:
    """About five round numbers from 0 on."""
    unit = 10.0 ** (log10(most / 5) // 1)
    step = next(n * unit for n in (1, 2, 5, 10) if n * unit >= most / 5)
    return [i * step for i in range(int(most / step + 1e-9) + 1)]


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
