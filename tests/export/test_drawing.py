"""Pictures: what is drawn stays where it was put, in every form and with every script."""

from io import BytesIO
from xml.etree import ElementTree as ET

import pytest
from PIL import Image, ImageChops

from backend.export import drawing
from backend.export.drawing import Box, Disc, Drawing, Line, Text, cut, png, svg, width_of, wrapped

SCRIPTS = (
    "Plain words, figures: 1.22x (1.18-1.25)",
    "Times and dash: 1.22\N{MULTIPLICATION SIGN} (1.18\N{EN DASH}1.25)",
    "Où était le garçon né à Łódź?",
    "Почему небо голубое?",
    "空はなぜ青いのですか",
    "لماذا السماء زرقاء",
    "🏇 and \U0010ffff and \ue000",
    "WWWWWWWWWWWW",
    "iiiiiiiiiiii",
)


def painted(picture: Drawing) -> tuple[int, int, int, int] | None:
    """The box of what is not white; None of nothing."""
    image = Image.open(BytesIO(png(picture))).convert("RGB")
    return ImageChops.difference(image, Image.new("RGB", image.size, "#ffffff")).getbbox()


@pytest.mark.parametrize("anchor", ["start", "middle", "end"])
@pytest.mark.parametrize("words", SCRIPTS)
def test_words_stay_within_their_box_in_every_script(words: str, anchor: drawing.Anchor) -> None:
    """With the fonts that there are: one of the system's may be wider than Pillow's own."""
    for bold in (False, True):
        text = Text(400, 60, words, 30, "#000000", anchor, bold)
        found = painted(Drawing("", 800, 100, (text,)))
        left, top, right, bottom = text.box
        assert found is not None
        assert left - 2 <= found[0] < found[2] <= right + 2
        assert top - 4 <= found[1] < found[3] <= bottom + 4


def test_without_a_font_of_the_system_signs_become_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "_OTHERS", ("no-such-font.ttf",))
    assert drawing._drawable("né 1.2\N{MULTIPLICATION SIGN}", 20)[0] == "ne 1.2x"
    assert drawing._drawable("небо 1", 20)[0] == "???? 1"


def test_what_cannot_be_printed_is_a_blank() -> None:
    text = Text(0, 0, "a\x00b\u202ec\ud800d\n e", 10, "#000000")
    assert text.words == "a b c d e"
    root = ET.fromstring(svg(Drawing("x\x1by", 9, 9, (text,))).encode())  # noqa: S314
    assert [part.text for part in root.iter() if part.text and part.text.strip()] == [
        "x y",
        "a b c d e",
    ]


def test_every_shape_is_in_both_forms() -> None:
    shapes = (Box(10, 10, 20, 5, "#ff0000"), Disc(60, 20, 5, "#00ff00"))
    line = Line(((5, 40), (95, 40)), "#0000ff", 4)
    for shape, box in zip(
        (*shapes, line), ((10, 10, 30, 15), (55, 15, 65, 25), (5, 38, 95, 42)), strict=True
    ):
        found = painted(Drawing("", 100, 50, (shape,)))
        assert found is not None
        assert all(abs(a - b) <= 1 for a, b in zip(found, box, strict=True))
    tags = [part.tag for part in ET.fromstring(svg(Drawing("", 9, 9, (*shapes, line))))]  # noqa: S314
    assert [tag.partition("}")[2] for tag in tags] == [
        *("title", "rect", "rect", "circle", "polyline")
    ]


@pytest.mark.parametrize("middle", [False, True])
def test_what_is_cut_fits_and_keeps_its_ends(*, middle: bool) -> None:
    words = "Speculative (draft=int4, k=12, tree=true)"
    for width in range(40, 700, 30):
        found = cut(words, width, 24, middle=middle)
        assert found == words or width_of(found, 24) <= width
        assert found == words or found.count("\N{HORIZONTAL ELLIPSIS}") == 1
        begin, _, end = found.partition("\N{HORIZONTAL ELLIPSIS}")
        assert words.startswith(begin)
        assert words.endswith(end)
    assert cut(words, 300, 24, middle=middle).endswith(")") == middle
    assert len(cut("a" * 10**6, 300, 24)) < 60


def test_lines_hold_all_the_words_that_fit() -> None:
    words = "one two three four five six seven eight nine ten " * 3
    lines = wrapped(words, 300, 20, 20)
    assert " ".join(lines) == words.strip()
    assert all(width_of(line, 20) <= 300 for line in lines)
    two = wrapped(words, 300, 20, 2)
    assert two[0] == lines[0]
    assert len(two) == 2
    assert two[1].endswith("\N{HORIZONTAL ELLIPSIS}")
    assert width_of(two[1], 20) <= 300
