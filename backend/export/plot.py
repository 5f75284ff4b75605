"""A plot whose x axis is logarithmic, with a legend beside it: what both curves are drawn in."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log2, log10

from backend.export.svg import INK, RULE, SOFT, Point, fitted, line, text

WIDTH, HEIGHT = 720, 346

#: The plot's edges, the room between its sides and what is drawn, and where the legend begins.
LEFT, END, TOP, FLOOR, INSET, LEGEND = 48, 470, 36, 282, 16, 500

SIZE = 13


@dataclass(frozen=True, slots=True)
class Plot:
    """`widest` and `most` are the largest values of either axis; the smallest are 1 and 0."""

    widest: float
    most: float

    def x(self, value: float) -> float:
        across = END - LEFT - 2 * INSET
        return LEFT + INSET + across * log2(max(value, 1)) / log2(max(self.widest, 2))

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
            yield text(x, FLOOR + 20, str(value), SIZE, anchor="middle")
        yield text((LEFT + END) / 2, FLOOR + 42, titles[0], SIZE, anchor="middle")
        yield text(LEFT - 40, TOP - 18, titles[1], SIZE)


def ticks(most: float) -> list[float]:
    """About five round numbers from 0 on."""
    unit = 10.0 ** (log10(most / 5) // 1)
    step = next(n * unit for n in (1, 2, 5, 10) if n * unit >= most / 5)
    return [i * step for i in range(int(most / step + 1e-9) + 1)]


def doubling(most: float) -> list[int]:
    """1, 2, 4 and so on."""
    return [2**n for n in range(int(log2(max(most, 1))) + 1)]


def caption(words: str) -> str:
    """Below the plot, what it is of."""
    return text(LEFT - 40, HEIGHT - 6, fitted(words, WIDTH - 20, 11), 11)


def entry(number: int, words: str, height: float) -> str:
    """A line of the legend; its mark is the caller's, left of it."""
    y = TOP + (number - 0.5) * height
    return text(LEGEND + 16, y + 4, fitted(words, WIDTH - LEGEND - 24, SIZE), SIZE, INK)
