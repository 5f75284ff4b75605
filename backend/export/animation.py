"""A race as a moving picture: a lane for each column, on one scale of tokens.

A style sheet inside the picture moves it. It needs no script, so it also plays where scripts do not
run, as on GitHub. A reader who asked for less motion sees only the end.
"""

from collections.abc import Iterator
from dataclasses import replace

from backend.export.svg import (
    BRAND,
    COLOURS,
    INK,
    RULE,
    SOFT,
    Point,
    box,
    disc,
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
from backend.results.figures import NONE, counted, figure, ordinal
from backend.results.scoreboard import Scoreboard
from backend.results.track import Unit, beginning, photo_finish, position, unit_of, won

WIDTH, MARGIN = 1000, 32
RIGHT = WIDTH - MARGIN

#: Heights: of what stands above the lanes, of a lane, of what stands below them
#: without its lines but one, of a line of it.
TOP, LANE, FOOT, LINE = 128, 56, 52, 20

#: Of a lane: where it begins, how long it is, how thick, and the room of the name before it.
BEGIN, LENGTH, THICK, ASIDE = 250, 530, 22, 210

#: Seconds that the race takes in the picture, and for which its end stays in sight.
MOVES, STAYS = 6.0, 5.0

#: The least share of the race's time between two points of a lane's course.
FINEST = 0.002

#: Between two ticks of the scale there are so many tokens, whichever gives eight ticks at most.
TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)


def animation(record: RaceRecord) -> str:
    """The race as SVG. Each lane grows as its column wrote, by that column's own clock, until the
    first one has finished. Then all lanes stop, so that the distances between them stay visible.
    """
    made = board(record)
    unit, finish = unit_of(made), photo_finish(made)
    every = range(len(made.scores))
    whole = max(*(position(made, i) for i in every), 1)
    clocks = [score.moments[-1].clock for score in made.scores if score.moments]
    end = finish.seconds if finish else max(clocks, default=0.0)
    bottom = TOP + LANE * len(made.scores)
    styles: list[str] = []
    parts = [*_head(record), *_scale(whole, unit, bottom)]
    for index in every:
        course = _course(made, index, end, whole)
        styles += _motion(index, course)
        parts += _lane(made, index, course[-1], TOP + LANE * (index + 0.5))
    foot = list(_foot(record, sentences.doubt(made), end, bottom))
    parts += foot
    said = "A race: " + ", ".join(
        f"{made.name(i)} {counted(position(made, i, end), unit)}" for i in every
    )
    height = bottom + FOOT + LINE * (len(foot) - 1)
    drawn = picture(WIDTH, height, "Decode Derby: a race", said, parts)
    first, rest = drawn.split("\n", 1)
    return f"{first}\n<style>\n{''.join(styles)}</style>\n{rest}"


def _course(made: Scoreboard, index: int, end: float, whole: int) -> list[Point]:
    """How far the lane was at which share of the race's time, from (0, 0) on; the last point is
    the photo finish. Between two steps nothing is known, so there the lane moves evenly.
    """
    score, unit, begun = made.scores[index], unit_of(made), beginning(made, index)
    points: list[Point] = [(0.0, 0.0)]
    characters = 0
    for moment in score.moments:
        characters += sum(len(shown) for _, shown in moment.spans)
        written = moment.start + moment.tokens
        share = max(0.0, moment.clock - begun) / end if end else 1.0
        done = (written if unit == "token" else characters) / whole
        before, reached = points[-1]
        if share > 1:
            points.append((1.0, reached + (done - reached) * (1 - before) / (share - before)))
            break
        if share - before >= FINEST or share == 1:
            points.append((share, done))
    last = position(made, index, end) / whole
    return points if points[-1][0] >= 1 else [*points, (1.0, last)]


def _motion(index: int, course: list[Point]) -> Iterator[str]:
    """The rules that move lane `index` and show what is beside it."""
    share = MOVES / (MOVES + STAYS)
    last = course[-1][1] or 1.0
    frames = [(100 * share * at, done) for at, done in course] + [(100.0, last)]
    bars = "".join(f"{at:.2f}%{{transform:scaleX({done / last:.4f})}}" for at, done in frames)
    heads = "".join(
        f"{at:.2f}%{{transform:translateX({(done - last) * LENGTH:.1f}px)}}" for at, done in frames
    )
    shown = f"0%,{100 * share:.2f}%{{opacity:0}}{100 * share + 3:.2f}%,100%{{opacity:1}}"
    yield f"@keyframes b{index}{{{bars}}}\n@keyframes h{index}{{{heads}}}\n"
    if not index:
        yield f"@keyframes r{{{shown}}}\n"
    time = f"{MOVES + STAYS:g}s linear infinite"
    yield (
        "@media (prefers-reduced-motion:no-preference){"
        f".b{index}{{animation:b{index} {time};transform-origin:{BEGIN}px 0}}"
        f".h{index}{{animation:h{index} {time}}}.r{{animation:r {time}}}}}\n"
    )


def _head(record: RaceRecord) -> Iterator[str]:
    """What ran, and what was asked."""
    target = str(replace(record.target, name=model_title(record.target.name)))
    yield text(MARGIN, 44, "Decode Derby", 26, BRAND, bold=True)
    yield text(RIGHT, 44, fitted(target, 640, 18), 18, SOFT, "end")
    asked, _, _ = record.request.prompt.strip().partition("\n")
    yield text(MARGIN, 80, fitted(asked, RIGHT - MARGIN, 20), 20, INK)


def _scale(whole: int, unit: Unit, bottom: float) -> Iterator[str]:
    """Ticks of tokens, or characters, above the lanes, and the flag where the longest text ends."""
    apart = next((each for each in TICKS if whole / each <= 8), whole)
    for count in range(0, whole, apart):
        x = BEGIN + LENGTH * count / whole
        yield line(((x, TOP - 4), (x, bottom)), RULE)
        if whole - count > apart / 2:
            yield text(x, TOP - 12, f"{count}", 14, SOFT, "middle")
    x = BEGIN + LENGTH
    yield from flag(x, TOP - 20, bottom)
    yield text(x + 24, TOP - 10, counted(whole, unit), 14)


def _lane(made: Scoreboard, index: int, finish: Point, middle: float) -> Iterator[str]:
    """A column's name, its lane at the photo finish, whether it came first, and its speed-up."""
    score, colour = made.scores[index], COLOURS[made.pace(index)]
    name = fitted(made.name(index), ASIDE, 20, bold=True)
    yield text(MARGIN, middle + 7, name, 20, INK, bold=True)
    yield box(BEGIN, middle - THICK / 2, LENGTH, THICK, RULE, 4)
    length = max(LENGTH * finish[1], 2)
    yield _moved(f"b{index}", box(BEGIN, middle - THICK / 2, length, THICK, colour, 4))
    yield _moved(f"h{index}", disc((BEGIN + length, middle), THICK / 2 + 3, colour))
    gain = figure("speedup").text(score, made.baseline).split(" ")[0]
    shown = "failed" if score.message else gain if gain != NONE else ""
    yield _moved("r", text(RIGHT, middle + 9, shown, 26, colour, "end", bold=True))
    if won(made, index):
        yield _moved("r", text(BEGIN + LENGTH + 24, middle + 7, ordinal(1), 20, INK, bold=True))


def _moved(name: str, part: str) -> str:
    """The same in a group that the style sheet moves."""
    return f'<g class="{name}">\n{part}</g>\n'


def _foot(record: RaceRecord, doubt: str, end: float, top: float) -> Iterator[str]:
    """How fast the picture is compared with the race, when and where the race was, and any doubt
    about its timings.
    """
    machine = record.machine
    processor = machine.processor or "unknown processor"
    slower = MOVES / end if end else 1.0
    pace = f"{slower:.1f} times slower" if slower >= 1 else f"{1 / slower:.1f} times faster"
    said = (
        f"Lanes stop when the first one finishes. Shown {pace} than recorded on "
        f"{record.made[:10]}, {processor}, {counted(machine.cores, 'core')}."
    )
    lines = [(words, SOFT) for words in wrapped(said, RIGHT - MARGIN, 14)]
    if doubt:
        lines += [(words, COLOURS["slower"]) for words in wrapped(doubt, RIGHT - MARGIN, 14)]
    for number, (words, colour) in enumerate(lines):
        yield text(MARGIN, top + 34 + LINE * number, words, 14, colour)
