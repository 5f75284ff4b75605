"""A race as one SVG picture, for chats and documents: a bar for each column, as the page has it in
the end. It has no script, no style sheet and nothing from elsewhere.
"""

from html import escape
from itertools import accumulate
from textwrap import wrap
from unicodedata import east_asian_width

from backend.models.files import model_title
from backend.records.record import RaceRecord
from backend.results.figures import counted, factor, span
from backend.results.result import Result, Row, result_of
from backend.results.sentences import beside, doubt, headline, mark

WIDTH, MARGIN, TOP, COLUMN, FOOT = 1200, 44, 190, 78, 90

#: Where bars begin, how long the longest may be, and where numbers end.
BEGIN, LENGTH, RIGHT = 320, 500, WIDTH - MARGIN

INK, SOFT, FAINT, PLAIN, WINNER = "#1b2430", "#566273", "#eef1f5", "#64748b", "#00704e"


def picture_of(record: RaceRecord) -> str:
    """Model and prompt, the headline, the bars, and where and when it was run."""
    scoreboard = record.board
    result = result_of(scoreboard)
    height = TOP + COLUMN * len(result.rows) + FOOT
    target, machine = record.target, record.machine
    model = f"{model_title(target.name)}, {target.engine} {target.precision}"
    sentences = headline(scoreboard, result)
    parts = [
        _text(MARGIN, 52, "Decode Derby", 30, WINNER, bold=True),
        _text(RIGHT, 52, model, 22, SOFT, "end"),
        _text(MARGIN, 98, _cut(record.request.prompt, 62), 28, bold=True),
        *(_text(MARGIN, 138 + 30 * n, line, 24) for n, line in enumerate(wrap(sentences, 92)[:2])),
    ]
    longest = max(
        [1.0, *((row.speedup.interval or (0, row.speedup.value))[1] for row in result.rows)]
    )
    for row in result.rows:
        y = TOP + COLUMN * row.column
        parts += _bar(row, mark(scoreboard, row), y, LENGTH / longest, result)
    one, bottom = BEGIN + LENGTH / longest, height - FOOT
    if result.baseline:
        parts += [_box(one - 1, TOP - 6, 2, bottom - TOP + 6, SOFT)]
        parts += [_text(one, bottom + 18, result.baseline.name, 18, SOFT, "middle")]
    where = (
        f"{record.made[:10]}, {machine.processor or 'unknown processor'}, "
        f"{counted(machine.cores, 'core')}. {doubt(scoreboard, result)}"
    )
    parts += [_text(MARGIN, bottom + 56, where, 20, SOFT)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img" font-family="system-ui, sans-serif">\n'
        f"<title>Decode Derby: a race</title>\n<desc>{_printed(sentences)}</desc>\n"
        f"{_box(0, 0, WIDTH, height, '#ffffff')}{''.join(parts)}</svg>\n"
    )


def _bar(row: Row, text: str, y: float, unit: float, result: Result) -> list[str]:
    """A column's name, what became of its text, its bar of `unit` pixels for a speed-up of 1, and
    its number; of a noisy race the interval alone.
    """
    colour = WINNER if row.column in result.leaders else PLAIN
    # What differs from other columns stands below the title; the longer, the smaller.
    title, bracket, rest = row.name.partition(" (")
    lines = [title, _cut(f"({rest}", 56)] if bracket else [title]
    parts = [
        *(
            _text(MARGIN, y + place, line, min(size, 450 // len(line)), bold=True)
            for line, place, size in zip(lines, (10 if bracket else 24, 32), (26, 18), strict=False)
        ),
        _text(MARGIN, y + 52, text, 20, SOFT),
        _box(BEGIN, y + 8, LENGTH, 30, FAINT),
        _box(BEGIN, y + 8, row.speedup.value * unit, 30, colour),
    ]
    if row.speedup.interval:
        low, high = (BEGIN + end * unit for end in row.speedup.interval)
        parts += [_box(low, y + 22, high - low, 2, INK)]
        parts += [_box(end - 1, y + 17, 2, 12, INK) for end in (low, high)]
    known = row.speedup.value and result.doubt != "noisy"
    number = factor(row.speedup.value) if known else "failed" if row.message else ""
    parts += [_text(RIGHT, y + 30, number + span(row.speedup), 28, colour, "end", bold=True)]
    return [*parts, _text(RIGHT, y + 56, beside(row), 20, SOFT, "end")]


def _cut(text: str, most: int) -> str:
    """The text in one line that is as wide as at most so many letters; of wide ones, as the
    Chinese, each counts as two.
    """
    line = " ".join(text.split())
    widths = accumulate(1 + (east_asian_width(character) in "WF") for character in line)
    fitting = sum(width <= most for width in widths)
    return line if fitting == len(line) else f"{line[: max(fitting - 3, 0)].rstrip()}..."


def _box(x: float, y: float, width: float, height: float, colour: str) -> str:
    size = f'width="{width:.1f}" height="{height:.1f}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} rx="3" fill="{colour}"/>\n'


def _text(
    x: float,
    y: float,
    words: str,
    size: int,
    colour: str = INK,
    anchor: str = "start",
    *,
    bold: bool = False,
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="{size}" fill="{colour}"{weight}>{_printed(words)}</text>\n'


def _printed(words: str) -> str:
    """The words in one line, without what cannot be printed, as text of XML."""
    return escape(" ".join("".join(c if c.isprintable() else " " for c in words).split()))
