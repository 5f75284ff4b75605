"""Parts of an SVG as text, without script, style sheet or anything from elsewhere. On the page
colours are the theme's; alone a picture is light.
"""

import unicodedata
from collections.abc import Iterable
from typing import Literal
from xml.sax.saxutils import escape, quoteattr

from backend.results.scoreboard import Pace

Point = tuple[float, float]

INK = "var(--body-text-color, #1b2430)"
SOFT = "var(--body-text-color-subdued, #566273)"
RULE = "var(--border-color-primary, #d5dbe3)"
FAINT = "var(--background-fill-secondary, #eef1f5)"
PANEL = "var(--background-fill-primary, #ffffff)"
CURVE = "var(--dd-forward, #0072b2)"
BRAND = "#0058a3"
BAD = "#b3261e"

#: Of a column that is shown to be faster, slower, or neither.
COLOURS: dict[Pace, str] = {
    "base": "var(--dd-base, #4a5a70)",
    "faster": "var(--dd-faster, #00704e)",
    "slower": "var(--dd-slower, #b0400a)",
    "control": SOFT,
    "": SOFT,
}

#: How wide a letter is at most on average, in the size of its font, whatever font its reader has.
_LETTER, _BOLD, _WIDE = 0.57, 0.62, 1.05


def picture(width: float, height: float, title: str, description: str, parts: Iterable[str]) -> str:
    """The whole SVG, with a title and a description for readers who cannot see it."""
    size = f'width="{width:g}" height="{height:g}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width:g} {height:g}" '
        'role="img" font-family="system-ui, sans-serif">\n'
        f"<title>{escape(printed(title))}</title>\n<desc>{escape(printed(description))}</desc>\n"
        f'<rect {size} fill="{PANEL}"/>\n{"".join(parts)}</svg>\n'
    )


def line(points: Iterable[Point], colour: str, thickness: float = 1, dashes: str = "") -> str:
    """Straight lines from point to point."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashed = {"stroke-dasharray": dashes} if dashes else {}
    stroke = {"fill": "none", "stroke": colour, "stroke-width": thickness}
    return _element("polyline", {"points": path, **stroke, **dashed})


def box(x: float, y: float, width: float, height: float, colour: str, radius: float = 0) -> str:
    """A filled rectangle with round corners."""
    place = {"x": x, "y": y, "width": width, "height": height}
    return _element("rect", {**place, "rx": radius, "fill": colour})


def disc(centre: Point, radius: float, colour: str, tip: str = "", *, hollow: bool = False) -> str:
    """A circle, filled or as a ring; `tip` shows when it is pointed at."""
    look = {"fill": PANEL, "stroke": colour, "stroke-width": 2} if hollow else {"fill": colour}
    inner = f"<title>{escape(printed(tip))}</title>" if tip else ""
    return _element("circle", {"cx": centre[0], "cy": centre[1], "r": radius, **look}, inner)


def text(
    x: float,
    y: float,
    words: str,
    size: float,
    colour: str = SOFT,
    anchor: Literal["start", "middle", "end"] = "start",
    *,
    bold: bool = False,
) -> str:
    """One line of words with its `anchor` at `x` and its baseline at `y`."""
    weight = {"font-weight": "bold"} if bold else {}
    look = {"font-size": size, "fill": colour, "text-anchor": anchor, **weight}
    return _element("text", {"x": x, "y": y, **look}, escape(printed(words)))


def fitted(words: str, width: float, size: float, *, bold: bool = False) -> str:
    """The words, or as much of both ends as has room."""
    whole = shown = printed(words)
    count = len(whole)
    while count and _width(shown, size, bold=bold) > width:
        count -= 1
        tail = count // 3
        shown = f"{whole[: count - tail].rstrip()}\N{HORIZONTAL ELLIPSIS}"
        shown += whole[len(whole) - tail :]
    return shown


def wrapped(words: str, width: float, size: float) -> list[str]:
    """The words in lines that fit."""
    lines = [""]
    for word in printed(words).split():
        longer = f"{lines[-1]} {word}".lstrip()
        if lines[-1] and _width(longer, size, bold=False) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return [fitted(each, width, size) for each in lines]


def printed(words: str) -> str:
    """The words in one line, without what cannot be printed."""
    return " ".join("".join(c if c.isprintable() else " " for c in words).split())


def _width(words: str, size: float, *, bold: bool) -> float:
    wide = sum(unicodedata.east_asian_width(char) in ("W", "F") for char in words)
    return size * (wide * _WIDE + (len(words) - wide) * (_BOLD if bold else _LETTER))


def _element(name: str, attributes: dict[str, str | float], inner: str = "") -> str:
    written = {n: v if isinstance(v, str) else f"{round(v, 1):g}" for n, v in attributes.items()}
    said = "".join(f" {name}={quoteattr(value)}" for name, value in written.items())
    return f"<{name}{said}>{inner}</{name}>\n" if inner else f"<{name}{said}/>\n"
