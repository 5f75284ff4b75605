"""The result of a race as a picture: for chats and documents."""

from collections.abc import Iterator
from dataclasses import replace

from backend.export.svg import (
    BAD,
    BRAND,
    COLOURS,
    INK,
    RULE,
    SOFT,
    box,
    fitted,
    line,
    picture,
    text,
    wrapped,
)
from backend.models.files import model_title
from backend.records.record import RaceRecord, board
from backend.results import sentences
from backend.results.figures import NONE, counted, figure, leading
from backend.results.metrics import Score
from backend.results.scoreboard import Scoreboard

WIDTH, MARGIN = 1200, 44
RIGHT = WIDTH - MARGIN

#: Heights: of what stands above the headline, of a line of it, of a column, of the foot without
#: its lines, of a line of it.
TOP, HEADLINE, COLUMN, FOOT, LINE = 140, 34, 78, 40, 28

#: Of a column's line: where its bar begins, how long the longest is, and the room of the texts on
#: either side of it.
BAR, LONGEST, ASIDE = 380, 260, 300

#: What a pace begins with where colours and fonts are the reader's.
_ARROWS = "\N{BLACK UP-POINTING TRIANGLE}\N{BLACK DOWN-POINTING TRIANGLE} "


def card(record: RaceRecord) -> str:
    """As SVG: prompt, model and machine, and a line per column with its speed, interval and whether
    the text stayed the same.
    """
    made = board(record)
    said = sentences.headline(made)
    lines = list(enumerate(wrapped(said, RIGHT - MARGIN, 26)))
    begin = TOP + HEADLINE * len(lines)
    end = begin + COLUMN * len(made.columns)
    foot = list(_foot(record, sentences.doubt(made), end + 10))
    height = end + FOOT + LINE * (len(foot) - 1)
    parts = [*_head(record)]
    parts += [text(MARGIN, TOP + 12 + HEADLINE * n, words, 26, INK) for n, words in lines]
    for index in range(len(made.columns)):
        parts += _column(made, index, begin + COLUMN * (index + 0.5))
    parts += foot
    return picture(WIDTH, height, "Decode Derby: a race", said, parts)


def _head(record: RaceRecord) -> Iterator[str]:
    """What ran on what, and what was asked."""
    target = str(replace(record.target, name=model_title(record.target.name)))
    yield box(0, 0, WIDTH, 10, BRAND)
    yield text(MARGIN, 58, "Decode Derby", 32, BRAND, bold=True)
    yield text(RIGHT, 58, fitted(target, 820, 25), 25, SOFT, "end")
    prompt = fitted(record.request.prompt, RIGHT - MARGIN, 34, bold=True)
    yield text(MARGIN, 108, prompt, 34, INK, bold=True)


def _column(made: Scoreboard, index: int, middle: float) -> Iterator[str]:
    """What a column came to."""
    score, colour = made.scores[index], COLOURS[made.pace(index)]
    name = fitted(made.name(index), ASIDE, 28, bold=True)
    yield text(MARGIN, middle - 4, name, 28, INK, bold=True)
    whole = score.state == "done" and not score.expected
    became = sentences.kept(made, index) if whole else sentences.state(score)
    yield text(MARGIN, middle + 25, became, 24)
    if score.message:
        said = fitted(f"failed: {score.message}", RIGHT - BAR, 26)
        yield text(BAR, middle + 9, said, 26, BAD)
        return
    length = LONGEST * _bar(score) / (max(map(_bar, made.scores)) or 1)
    yield box(BAR, middle - 16, max(length, 2), 32, colour, 4)
    speed, _ = leading(score)  # of a program, how long it took
    rate = speed.text(score, made.baseline)
    unit = "" if rate == NONE or score.fed else f" {speed.unit.name}"
    yield text(BAR + length + 12, middle + 9, f"{rate}{unit}", 26, INK)
    if not (score.fed or made.noisy):
        gain = figure("speedup").text(score, made.baseline)
        yield text(RIGHT, middle - 4, gain, 28, colour, "end", bold=True)
    pace = sentences.pace(made, index).lstrip(_ARROWS)
    yield text(RIGHT, middle + 25, pace, 24, colour, "end")


def _foot(record: RaceRecord, doubt: str, top: float) -> Iterator[str]:
    """A rule, and below it line by line where and when; what leaves the timings in doubt."""
    yield line(((MARGIN, top), (RIGHT, top)), RULE, 2)
    machine = record.machine
    processor = machine.processor or "unknown processor"
    where = f"{record.made[:10]}, {processor}, {counted(machine.cores, 'core')}"
    lines = [(words, SOFT) for words in wrapped(where, RIGHT - MARGIN, 20)]
    if doubt:
        lines += [(words, COLOURS["slower"]) for words in wrapped(doubt, RIGHT - MARGIN, 20)]
    for number, (words, colour) in enumerate(lines):
        yield text(MARGIN, top + 36 + LINE * number, words, 20, colour)


def _bar(score: Score) -> float:
    """The length of a column's bar, in the unit written beside it: seconds of a program, else
    tokens per second; 0 while unknown.
    """
    return score.seconds if score.fed else score.tokens_per_second
