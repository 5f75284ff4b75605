"""The result of a race as a picture: for chats and documents."""

from collections.abc import Iterator
from dataclasses import replace

from backend.export.svg import (
    BAD,
    BRAND,
    COLOURS,
    FAINT,
    INK,
    PANEL,
    RULE,
    SOFT,
    box,
    fitted,
    flag,
    line,
    picture,
    text,
    wrapped,
)
from backend.models.files import model_title
from backend.records.record import RaceRecord, board
from backend.results import sentences
from backend.results.figures import counted, figure, ordinal, rate, span
from backend.results.scoreboard import Scoreboard
from backend.results.track import length_at, photo_finish, ranks, settles, unit_of

WIDTH, MARGIN = 1200, 44
RIGHT = WIDTH - MARGIN

#: Heights: of what stands above the headline, of a line of it, of a column, of the scale, of the
#: foot without its lines, of a line of it.
TOP, HEADLINE, COLUMN, SCALE, FOOT, LINE = 140, 34, 78, 30, 40, 28

#: Of a lane: where it begins, how long and how thick it is, the room of the name before it, and
#: where the winner's number and the place end behind it.
BEGIN, LENGTH, THICK, ASIDE, COUNTED, PLACE = 350, 460, 30, 280, 880, 940

#: What a pace begins with where colours and fonts are the reader's.
_ARROWS = "\N{BLACK UP-POINTING TRIANGLE}\N{BLACK DOWN-POINTING TRIANGLE} "


def card(record: RaceRecord) -> str:
    """As SVG: prompt, model and machine, the track as the page has it in the end, with a line per
    column, and whether the text stayed the same.
    """
    made = board(record)
    said = sentences.headline(made)
    lines = list(enumerate(wrapped(said, RIGHT - MARGIN, 26)))
    begin = TOP + HEADLINE * len(lines)
    end = begin + COLUMN * len(made.columns)
    foot = list(_foot(record, sentences.doubt(made), end + SCALE + 10))
    height = end + SCALE + FOOT + LINE * (len(foot) - 1)
    parts = [*_head(record)]
    parts += [text(MARGIN, TOP + 12 + HEADLINE * n, words, 26, INK) for n, words in lines]
    finish, unit = photo_finish(made), unit_of(made)
    reached = [length_at(made, i, finish) for i in range(len(made.scores))]
    whole = max(*reached, 1.0)
    places = ranks(made, finish) if finish else {}
    for index, length in enumerate(reached):
        middle = begin + COLUMN * (index + 0.5)
        place = places.get(index, (0, False))
        count = "" if settles(made, finish) and length < whole else f"{int(length):,}"
        parts += _column(made, index, count, length / whole, place, middle)
    parts += flag(BEGIN + LENGTH, begin, end + 8)
    parts += [text(BEGIN + LENGTH, end + 26, counted(round(whole), unit), 20, INK, "middle"), *foot]
    return picture(WIDTH, height, "Decode Derby: a race", said, parts)


def _head(record: RaceRecord) -> Iterator[str]:
    """What ran on what, and what was asked."""
    target = str(replace(record.target, name=model_title(record.target.name)))
    yield box(0, 0, WIDTH, 10, BRAND)
    yield text(MARGIN, 58, "Decode Derby", 32, BRAND, bold=True)
    yield text(RIGHT, 58, fitted(target, 820, 25), 25, SOFT, "end")
    first, *more = wrapped(sentences.gist(record.request.prompt), RIGHT - MARGIN - 30, 38)
    prompt = f"{first}\N{HORIZONTAL ELLIPSIS}" if more else first
    yield text(MARGIN, 108, prompt, 34, INK, bold=True)


def _column(
    made: Scoreboard, index: int, count: str, share: float, place: tuple[int, bool], middle: float
) -> Iterator[str]:
    """A column's lane, its place and its result. `count` is the lane's length in tokens or
    characters, "" of a bar that is its speed, `share` its length as a share of the longest, and
    `place` as in `ranks`; 0: none.
    """
    score, colour = made.scores[index], COLOURS[made.pace(index)]
    name = fitted(made.name(index), ASIDE, 28, bold=True)
    yield text(MARGIN, middle - 4, name, 28, INK, bold=True)
    whole = score.state == "done" and not score.expected
    became = sentences.kept(made, index) if whole else sentences.state(score)
    yield text(MARGIN, middle + 25, became, 24)
    if score.message:
        said = fitted(f"failed: {score.message}", RIGHT - BEGIN, 26)
        yield text(BEGIN, middle + 9, said, 26, BAD)
        return
    yield box(BEGIN, middle - THICK / 2, LENGTH, THICK, FAINT, 4)
    yield box(BEGIN, middle - THICK / 2, LENGTH * share, THICK, colour, 4)
    end, near = BEGIN + LENGTH * share, 0.85 < share < 1  # the flag would lie on its number
    if near:
        yield text(end - 10, middle + 8, count, 22, PANEL, "end")
    else:
        yield text(end + 10, middle + 8, count, 22)
    at, shared = place
    if at:
        first, told = at == 1, ordinal(at, shared=shared)
        size, shade = (26, INK) if first else (24, SOFT)
        yield text(PLACE, middle, told, size, shade, "end", bold=first)
    speed = figure("time" if score.fed else "speedup")
    value = speed.value(score, made.baseline)
    if value is not None:
        yield text(RIGHT, middle, speed.unit.text(value), 36, colour, "end", bold=not made.noisy)
    elif made.baseline_index is None and score.tokens_per_second:
        told = f"{rate(score.tokens_per_second)} tokens/s"
        yield text(RIGHT, middle, told, 28, colour, "end", bold=True)
    pace = sentences.pace(made, index).lstrip(_ARROWS)
    interval = "" if made.noisy else span(made.gain(index))
    told = f"{pace}{interval}"
    if fitted(told, RIGHT - COUNTED, 22) != told:
        told = interval.strip(" ()")
    yield text(RIGHT, middle + 27, told, 22, colour, "end")


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
