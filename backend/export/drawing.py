"""A picture as a list of shapes, and the same picture as SVG and as PNG."""

import unicodedata
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, Literal
from xml.sax.saxutils import escape, quoteattr

if TYPE_CHECKING:
    from PIL import Image, ImageDraw
    from PIL.ImageFont import FreeTypeFont

Anchor = Literal["start", "middle", "end"]

#: The font that Pillow brings, which has the signs of ASCII and few more.
_OWN = ""

#: Fonts that systems bring, for the other signs.
_OTHERS = (
    *("DejaVuSans.ttf", "NotoSans-Regular.ttf", "NotoSansCJK-Regular.ttc", "Arial Unicode.ttf"),
    *("segoeui.ttf", "msyh.ttc"),
)

#: Of signs that Pillow's font lacks, what says the same.
_ALIKE = str.maketrans({"\N{MULTIPLICATION SIGN}": "x", "\N{EN DASH}": "-", "\N{EM DASH}": "-"})

#: A sign that no font has: what is drawn in its place is what a font lacks.
_MISSING = "\U0010ffff"

_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"

#: Pixels that become one, each way, so that edges are smooth; how many colours a PNG keeps.
_FINER, _COLOURS = 2, 64

#: How much a font's strokes grow, and its advances with them, to be bold; in its size.
_STROKE, _BOLDER = 0.018, 1.06


@dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle with round corners. Lengths here and below are in units of the drawing."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    radius: float = 0


@dataclass(frozen=True, slots=True)
class Line:
    """Straight lines from point to point."""

    points: tuple[tuple[float, float], ...]
    colour: str
    thickness: float = 2


@dataclass(frozen=True, slots=True)
class Disc:
    """A filled circle around (x, y)."""

    x: float
    y: float
    radius: float
    colour: str


@dataclass(frozen=True, slots=True)
class Text:
    """One line of words, whose `anchor` is at `x` and whose letters stand on `y`. White space and
    what cannot be printed is one blank.
    """

    x: float
    y: float
    words: str
    size: float
    colour: str
    anchor: Anchor = "start"
    bold: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", _printed(self.words))

    @property
    def width(self) -> float:
        """What every way of drawing it takes, whatever font there is."""
        return width_of(self.words, self.size, bold=self.bold)

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom."""
        shift = {"start": 0.0, "middle": 0.5, "end": 1.0}[self.anchor]
        left = self.x - shift * self.width
        return left, self.y - 0.8 * self.size, left + self.width, self.y + 0.25 * self.size


Shape = Box | Line | Disc | Text


@dataclass(frozen=True, slots=True)
class Drawing:
    """`shapes` from the hindmost on, on white. `title` says what it shows to who cannot see it."""

    title: str
    width: int
    height: int
    shapes: tuple[Shape, ...]


def _printed(words: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in words).split())


# --- words that fit -----------------------------------------------------------------------------


def width_of(words: str, size: float, *, bold: bool = False) -> float:
    """How wide a line of words is."""
    return sum(map(_advance, words)) * size * (_BOLDER if bold else 1)


def cut(words: str, width: float, size: float, *, bold: bool = False, middle: bool = False) -> str:
    """The words, or as much as fits of their beginning, with `middle` of both ends."""

    def shortened(count: int) -> str:
        tail = count // 2 if middle else 0
        return f"{words[: count - tail].rstrip()}{_ELLIPSIS}{words[len(words) - tail :]}"

    if width_of(words, size, bold=bold) <= width:
        return words
    counts = range(1, len(words))
    fitting = bisect_right(counts, width, key=lambda n: width_of(shortened(n), size, bold=bold))
    return shortened(fitting)


def wrapped(words: str, width: float, size: float, most: int) -> list[str]:
    """The words in `most` lines at most, the last one cut."""
    lines = [""]
    for word in words.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if lines[-1] and len(lines) < most and width_of(longer, size) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return [cut(line, width, size) for line in lines]


@lru_cache(4096)
def _advance(char: str) -> float:
    """How wide a sign is, in the size of its font; a guess for what Pillow's font lacks."""
    plain = char.translate(_ALIKE)
    if _has(_OWN, plain):
        return _font(_OWN, 100).getlength(plain) / 100
    return 1.0 if unicodedata.east_asian_width(char) in ("W", "F") else 0.62


# --- SVG ----------------------------------------------------------------------------------------


def svg(drawing: Drawing) -> str:
    """The picture as SVG of its own: no script, no style sheet, nothing from elsewhere. Every line
    of words is as long as it is said to be here, whatever font its reader has.
    """
    size = f'width="{drawing.width}" height="{drawing.height}"'
    shapes = "\n".join(map(_element, drawing.shapes))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
        f'viewBox="0 0 {drawing.width} {drawing.height}" font-family="system-ui, sans-serif" '
        f'role="img">\n<title>{escape(_printed(drawing.title))}</title>\n'
        f'<rect {size} fill="#ffffff"/>\n{shapes}\n</svg>\n'
    )


def _element(shape: Shape) -> str:
    match shape:
        case Box(x, y, width, height, colour, radius):
            values = {"x": x, "y": y, "width": width, "height": height, "rx": radius}
            return f"<rect{_attributes(values | {'fill': colour})}/>"
        case Disc(x, y, radius, colour):
            return f"<circle{_attributes({'cx': x, 'cy': y, 'r': radius, 'fill': colour})}/>"
        case Line(points, colour, thickness):
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            values = {"points": path, "stroke": colour, "stroke-width": thickness}
            return f"<polyline{_attributes(values | {'fill': 'none'})}/>"
        case Text(x, y, words, size, colour, anchor, bold):
            values = {"x": x, "y": y, "font-size": size, "fill": colour, "text-anchor": anchor}
            values |= {"font-weight": "bold"} if bold else {}
            values |= {"textLength": shape.width, "lengthAdjust": "spacingAndGlyphs"}
            return f"<text{_attributes(values)}>{escape(words)}</text>" if words else ""


def _attributes(values: dict[str, str | float]) -> str:
    written = {n: v if isinstance(v, str) else f"{v:.1f}" for n, v in values.items()}
    return "".join(f" {name}={quoteattr(value)}" for name, value in written.items())


# --- PNG ----------------------------------------------------------------------------------------


def png(drawing: Drawing) -> bytes:
    """The picture as PNG, in Pillow's own font where that has the signs, else in one of the
    system's; "?" stands for what no font here has.
    """
    from PIL import Image, ImageDraw

    finer = (drawing.width * _FINER, drawing.height * _FINER)
    image = Image.new("RGB", finer, "#ffffff")
    canvas = ImageDraw.Draw(image)
    for shape in drawing.shapes:
        _draw(canvas, shape)
    return _written(image.resize((drawing.width, drawing.height), Image.Resampling.BOX))


def _written(image: "Image.Image") -> bytes:
    file = BytesIO()
    image.quantize(_COLOURS).save(file, "PNG", optimize=True)
    return file.getvalue()


def _draw(canvas: "ImageDraw.ImageDraw", shape: Shape) -> None:
    match shape:
        case Box(x, y, width, height, colour, radius):
            corners = _finer(x, y, x + width, y + height)
            canvas.rounded_rectangle(corners, radius * _FINER, colour)
        case Disc(x, y, radius, colour):
            canvas.circle(_finer(x, y), radius * _FINER, colour)
        case Line(points, colour, thickness):
            path = [_finer(*point) for point in points]
            canvas.line(path, colour, round(thickness * _FINER), "curve")
        case Text():
            _write(canvas, shape)


def _write(canvas: "ImageDraw.ImageDraw", text: Text) -> None:
    if not text.words:
        return
    words, font = _drawable(text.words, text.size * _FINER)
    stroke = text.size * _FINER * _STROKE if text.bold else 0
    left, _, right, _ = _finer(*text.box)
    # A font of the system may be wider than the room: it is then drawn smaller.
    room, length = right - left, font.getlength(words) + 2 * stroke
    if length > room:
        words, font = _drawable(text.words, text.size * _FINER * room / length)
        length = min(room, font.getlength(words) + 2 * stroke)
    shift = {"start": 0.0, "middle": 0.5, "end": 1.0}[text.anchor]
    place = (left + shift * (room - length) + stroke, text.y * _FINER)
    canvas.text(place, words, text.colour, font, "ls", stroke_width=stroke)


def _finer(*lengths: float) -> list[float]:
    return [length * _FINER for length in lengths]


# --- fonts --------------------------------------------------------------------------------------


def _drawable(words: str, size: float) -> "tuple[str, FreeTypeFont]":
    """The words as a font here can draw them, and the font."""
    signs = set(words.translate(_ALIKE))
    most = max((_OWN, *_OTHERS), key=lambda name: sum(_has(name, sign) for sign in signs))
    return "".join(_nearest(most, char) for char in words), _font(most, size)


def _nearest(name: str, char: str) -> str:
    """The sign as the font of that name has it, or as a letter without accents, or "?"."""
    letter = unicodedata.normalize("NFKD", char)[0]
    alike = (char, char.translate(_ALIKE), letter)
    return next((sign for sign in alike if _has(name, sign)), "?")


@lru_cache(4096)
def _has(name: str, char: str) -> bool:
    """Whether there is a font of that name here, and the sign in it."""
    try:
        font = _font(name, 20)
    except OSError:
        return False
    return char == " " or _pixels(font, char) != _pixels(font, _MISSING)


def _pixels(font: "FreeTypeFont", char: str) -> bytes:
    from PIL import Image, ImageDraw

    image = Image.new("L", (60, 60))
    ImageDraw.Draw(image).text((20, 20), char, 255, font)
    return image.tobytes()


@lru_cache(64)
def _font(name: str, size: float) -> "FreeTypeFont":
    """Raises OSError if there is none of that name."""
    from PIL import ImageFont

    font = ImageFont.truetype(name, size) if name else ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont)  # noqa: S101 (Pillow is built with FreeType)
    return font
