"""The result of a race as a picture: for chats, and for where a link is shown."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from backend.export.drawing import Anchor, Box, Drawing, Line, Shape, Text, cut, width_of, wrapped
from backend.models.files import model_title
from backend.records.record import RaceRecord, board
from backend.results import sentences
from backend.results.figures import NONE, figure, leading
from backend.results.metrics import Score
from backend.results.scoreboard import Pace, Scoreboard

#: As links are shown in most places.
WIDTH, HEIGHT, MARGIN = 1200, 630, 44
RIGHT = WIDTH - MARGIN

INK, SOFT, RULE, BRAND, BAD = "#1b2430", "#566273", "#d5dbe3", "#0058a3", "#b3261e"

#: Of a column that is shown to be faster, slower, or neither.
COLOURS: dict[Pace, str] = {
    "base": "#4a5a70",
    "faster": "#00704e",
    "slower": "#b0400a",
    "control": "#667285",
    "": "#667285",
}

#: What a pace begins with where colours and fonts are the reader's.
_ARROWS = "\N{BLACK UP-POINTING TRIANGLE}\N{BLACK DOWN-POINTING TRIANGLE} "

#: Where the columns' lines begin and end; more columns than HIGH get low lines, and the headline
#: one line.
TOP, BOTTOM, HIGH, TALLEST = 196, 572, 6, 92


@dataclass(frozen=True, slots=True)
class Cell:
    """Where a column's line says what: from its anchor on, so many units wide, below its middle."""

    x: float
    width: float
    below: float
    size: float
    anchor: Anchor = "start"
    bold: bool = False


#: The cells of high lines and of low ones, and of both the bar's left end, longest and thickness.
_LINES = {
    True: {
        "name": Cell(MARGIN, 304, -4, 30, bold=True),
        "text": Cell(MARGIN, 304, 27, 25),
        "rate": Cell(12, 184, 9, 26),
        "gain": Cell(RIGHT, 306, -2, 32, "end", bold=True),
        "pace": Cell(RIGHT, 306, 27, 25, "end"),
    },
    False: {
        "name": Cell(MARGIN, 236, 8, 24, bold=True),
        "text": Cell(RIGHT, 144, 8, 24, "end"),
        "rate": Cell(8, 174, 8, 24),
        "gain": Cell(770, 212, 8, 24, "end", bold=True),
        "pace": Cell(1004, 222, 8, 24, "end"),
    },
}
_BARS = {True: (360, 280, 34), False: (286, 88, 20)}


def card(record: RaceRecord) -> Drawing:
    """Who was how fast, by what interval, and whether the text stayed, a line a column; and what
    was asked of which model on what machine.
    """
    made = board(record)
    count, said = len(made.columns), sentences.headline(made)
    top = TOP if count <= HIGH * 4 / 3 else TOP - 32
    height = min((BOTTOM - top) / count, TALLEST)
    top += (BOTTOM - top - count * height) / 2
    lines = wrapped(said, RIGHT - MARGIN, 26, 2 if count <= HIGH * 4 / 3 else 1)
    shapes: list[Shape] = [*heading(record), *_prompt(record)]
    shapes += [Text(MARGIN, 150 + 32 * i, line, 26, INK) for i, line in enumerate(lines)]
    for index in range(count):
        shapes += _line(made, index, top + (index + 0.5) * height)
    shapes += _foot(record, sentences.doubt(made))
    return Drawing(f"Decode Derby: {said}", WIDTH, HEIGHT, tuple(shapes))


def heading(record: RaceRecord) -> Iterator[Shape]:
    """What every picture begins with: whose it is, and what ran on what."""
    target = str(replace(record.target, name=model_title(record.target.name)))
    yield Box(0, 0, WIDTH, 10, BRAND)
    yield Text(MARGIN, 58, "Decode Derby", 32, BRAND, bold=True)
    yield Text(RIGHT, 58, cut(target, 820, 25, middle=True), 25, SOFT, "end")


def _prompt(record: RaceRecord) -> Iterator[Shape]:
    words = " ".join(record.request.prompt.split())
    yield Text(MARGIN, 108, cut(words, RIGHT - MARGIN, 34, bold=True), 34, INK, bold=True)


def _foot(record: RaceRecord, doubt: str) -> Iterator[Shape]:
    """Where and when; what leaves the timings in doubt."""
    yield Line(((MARGIN, 582), (RIGHT, 582)), RULE)
    warning = Text(RIGHT, 614, cut(doubt, 700, 22), 22, COLOURS["slower"], "end")
    yield warning
    machine = record.machine
    cores = f"{machine.cores:.3g} {'core' if machine.cores == 1 else 'cores'}"
    where = f"{record.made[:10]}, {machine.processor or 'unknown processor'}, {cores}"
    room = RIGHT - MARGIN - (warning.width + 24 if doubt else 0)
    yield Text(MARGIN, 614, cut(where, room, 22), 22, SOFT)


def _line(made: Scoreboard, index: int, middle: float) -> Iterator[Shape]:
    """What a column came to."""
    high, score, colour = len(made.columns) <= HIGH, made.scores[index], COLOURS[made.pace(index)]
    cells, (left, longest, thickness) = _LINES[high], _BARS[high]
    yield _words(cells["name"], middle, made.name(index), INK)
    yield _words(cells["text"], middle, _text(made, index), SOFT)
    if score.message:
        place = replace(cells["rate"], x=left, width=cells["gain"].x - left)
        yield _words(place, middle, f"failed: {score.message}", BAD)
        return
    length = longest * _quickness(score) / (max(map(_quickness, made.scores)) or 1)
    yield Box(left, middle - thickness / 2, max(length, 2), thickness, colour, 4)
    rate = replace(cells["rate"], x=left + length + cells["rate"].x)
    yield _words(rate, middle, _rate(score, made.baseline), INK)
    yield _words(cells["gain"], middle, figure("speedup").text(score, made.baseline), colour)
    yield _words(cells["pace"], middle, sentences.pace(made, index).lstrip(_ARROWS), colour)


def _words(cell: Cell, middle: float, words: str, colour: str) -> Text:
    """The words in a cell, smaller if they are too long for it; cut if that does not do."""
    need = width_of(words, cell.size, bold=cell.bold)
    size = max(0.85, min(1.0, cell.width / max(need, 1))) * cell.size
    fitting = cut(words, cell.width, size, bold=cell.bold, middle=True)
    return Text(cell.x, middle + cell.below, fitting, size, colour, cell.anchor, cell.bold)


def _text(made: Scoreboard, index: int) -> str:
    """What became of the column's text, or of the column."""
    score = made.scores[index]
    whole = score.state == "done" and not score.expected
    return sentences.kept(made, index) if whole else sentences.state(score)


def _rate(score: Score, baseline: Score) -> str:
    """How fast the column was; of a program, how long it took."""
    speed, _ = leading(score)
    value = speed.text(score, baseline)
    return value if value == NONE or score.fed else f"{value} {speed.unit.name}"


def _quickness(score: Score) -> float:
    """What bars are as long as; 0 while unknown."""
    seconds = score.seconds if score.fed else score.tpot
    return 1 / max(seconds, 1e-9) if seconds else 0.0
