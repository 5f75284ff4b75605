"""A race as one SVG picture, for chats and documents: a lane for each column, as the page has it in
the end, with its speed-up.
"""

from collections.abc import Iterator
from dataclasses import replace

from backend.export.svg import (
    BAD,
    BRAND,
    COLOURS,
    FAINT,
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
from backend.results.figures import counted, figure, ordinal, rate, span
from backend.results.scoreboard import Scoreboard
from backend.results.track import length_at, photo_finish, ranks, unit_of

WIDTH, MARGIN = 1200, 44
RIGHT = WIDTH - MARGIN

#: Heights: of what stands above the headline, of a line of it, of a column, of the scale, of a line
#: of the foot.
TOP, HEADLINE, COLUMN, SCALE, LINE = 140, 34, 78, 40, 28

#: Of a lane: where it begins, how long and how thick it is, the room of the name before it, and
#: where the place ends behind it.
BEGIN, LENGTH, THICK, ASIDE, PLACE = 350, 460, 30, 280, 900


def picture_of(record: RaceRecord) -> str:
    """The picture of a race: model and prompt, the headline, the lanes, where and when it was run,
    and any doubt about its timings.
    """
    made, target = board(record), replace(record.target, name=model_title(record.target.name))
    first, *more = wrapped(sentences.gist(record.request.prompt), RIGHT - MARGIN - 30, 38)
    prompt = f"{first}\N{HORIZONTAL ELLIPSIS}" if more else first
    parts = [
        box(0, 0, WIDTH, 10, BRAND),
        text(MARGIN, 58, "Decode Derby", 32, BRAND, bold=True),
        text(RIGHT, 58, fitted(str(target), 820, 25), 25, SOFT, "end"),
        text(MARGIN, 108, prompt, 34, INK, bold=True),
    ]
    headline = sentences.headline(made)
    lines = wrapped(headline, RIGHT - MARGIN, 26)
    parts += [text(MARGIN, TOP + 12 + HEADLINE * n, each, 26, INK) for n, each in enumerate(lines)]
    top = TOP + HEADLINE * len(lines)
    end = top + COLUMN * len(made.columns)
    finish = photo_finish(made)
    lengths = [length_at(made, i, finish) for i in range(len(made.scores))]
    whole, places = max(*lengths, 1.0), ranks(made, finish) if finish else {}
    for index, length in enumerate(lengths):
        place, shared = places.get(index, (0, False))
        words = ordinal(place, shared=shared) if place else ""
        parts += _lane(made, index, length / whole, words, top + COLUMN * (index + 0.5))
    parts += [line(((BEGIN + LENGTH, top), (BEGIN + LENGTH, end + 8)), INK, 2)]
    count = counted(round(whole), unit_of(made))
    parts += [text(BEGIN + LENGTH, end + 26, count, 20, INK, "middle")]
    parts += [line(((MARGIN, end + SCALE), (RIGHT, end + SCALE)), RULE, 2)]
    machine = record.machine
    where = f"{record.made[:10]}, {machine.processor or 'unknown processor'}"
    foot = [(f"{where}, {counted(machine.cores, 'core')}", SOFT)]
    foot += [(sentences.doubt(made), COLOURS["slower"])]
    rows = [
        (row, shade) for said, shade in foot for row in wrapped(said, RIGHT - MARGIN, 20) if row
    ]
    for number, (row, shade) in enumerate(rows, 1):
        parts.append(text(MARGIN, end + SCALE + LINE * number, row, 20, shade))
    height = end + SCALE + LINE * (len(rows) + 1)
    return picture(WIDTH, height, "Decode Derby: a race", headline, parts)


def _lane(made: Scoreboard, index: int, share: float, place: str, y: float) -> Iterator[str]:
    """A column's name, what became of its text, its lane around the height `y`, `share` of the
    longest, its place, and its speed-up with the interval.
    """
    score, colour = made.scores[index], COLOURS[made.pace(index)]
    yield text(MARGIN, y - 4, fitted(made.name(index), ASIDE, 28, bold=True), 28, INK, bold=True)
    whole = score.state == "done" and not score.expected
    became = sentences.kept(made, index) if whole else sentences.state(score)
    yield text(MARGIN, y + 25, became, 24)
    if score.message:
        yield text(BEGIN, y + 9, fitted(f"failed: {score.message}", RIGHT - BEGIN, 26), 26, BAD)
        return
    yield box(BEGIN, y - THICK / 2, LENGTH, THICK, FAINT, 4)
    yield box(BEGIN, y - THICK / 2, LENGTH * share, THICK, colour, 4)
    yield text(PLACE, y + 9, place, 26, INK, "end", bold=True)
    speed = figure("time" if score.fed else "speedup")
    value = speed.value(score, made.baseline)
    shown = speed.unit.text(value) if value is not None else ""
    if made.baseline_index is None and score.tokens_per_second:
        shown = f"{rate(score.tokens_per_second)} tokens/s"
    yield text(RIGHT, y, shown, 36 if value is not None else 28, colour, "end", bold=True)
    interval = "" if made.noisy else span(made.gain(index)).strip(" ()")
    yield text(RIGHT, y + 27, interval or sentences.pace(made, index), 22, colour, "end")
