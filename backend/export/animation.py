"""A race as a picture that moves: a lane for each column, on one scale of tokens.

It moves by a style sheet of its own, which a picture within a page may have, so it needs no script
and plays where scripts do not, as on GitHub. A reader who asked for less motion sees its end alone.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from backend.export.svg import (
    BRAND,
    COLOURS,
    INK,
    PANEL,
    RULE,
    SOFT,
    Point,
    box,
    disc,
    fitted,
    line,
    picture,
    text,
    wrapped,
)
from backend.models.files import model_title
from backend.records.record import RaceRecord, board
from backend.results import sentences
from backend.results.figures import NONE, counted, figure
from backend.results.metrics import Score
from backend.results.scoreboard import Scoreboard

WIDTH, MARGIN = 1000, 32
RIGHT = WIDTH - MARGIN

#: Heights: of what stands above the lanes, of a lane, of what stands below them
#: without its lines but one, of a line of it.
TOP, LANE, FOOT, LINE = 128, 56, 52, 20

#: Of a lane: where it begins, how long it is, how thick, and the room of the name before it.
BEGIN, LENGTH, THICK, ASIDE = 250, 530, 22, 210

#: Seconds that the race takes in the picture, and for which its end stays in sight.
MOVES, STAYS = 6.0, 5.0

#: Between two ticks of the scale there are so many tokens, whichever gives eight ticks at most.
TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)


def animation(record: RaceRecord) -> str:
    """As SVG: each lane grows as its column wrote, by that column's own clock, until the first one
    has finished. There all lanes stop, so that the distance between them stays in sight.
    """
    made = board(record)
    whole = max((len(score.times) for score in made.scores), default=0) or 1
    end = photo_finish(made.scores)
    bottom = TOP + LANE * len(made.scores)
    styles: list[str] = []
    parts = [*_head(record), *_scale(whole, bottom)]
    for index, score in enumerate(made.scores):
        course = _course(score, end, whole)
        styles += _motion(index, course, end)
        place = 0 if score.message else 1 + sum(_by(s, end) > _by(score, end) for s in made.scores)
        parts += _lane(made, index, course[-1], place, TOP + LANE * (index + 0.5))
    foot = list(_foot(record, sentences.doubt(made), end, bottom))
    parts += foot
    said = "A race: " + ", ".join(
        f"{made.name(i)} {counted(_by(score, end), 'token')}" for i, score in enumerate(made.scores)
    )
    drawn = picture(
        WIDTH, bottom + FOOT + LINE * (len(foot) - 1), "Decode Derby: a race", said, parts
    )
    first, rest = drawn.split("\n", 1)
    return f"{first}\n<style>\n{''.join(styles)}</style>\n{rest}"


def photo_finish(scores: list[Score]) -> float:
    """The seconds on a column's own clock at which the first one had written all of its text;
    where none has, the longest clock. A column that its own limit ended has not finished.
    """
    ends = [s.times[-1] for s in scores if s.times and s.state == "done" and not _limited(s)]
    return min(ends) if ends else max((s.times[-1] for s in scores if s.times), default=0.0)


def _limited(score: Score) -> bool:
    return score.reason == "column limit"


def _by(score: Score, end: float) -> int:
    """How many tokens the column had written by then."""
    return sum(time <= end for time in score.times)


def _course(score: Score, end: float, whole: int) -> list[Point]:
    """How far the lane was at which share of the race's time, from (0, 0) on; the last point is
    the photo finish. Between two steps nothing is known, so there the lane moves evenly.
    """
    points: list[Point] = [(0.0, 0.0)]
    tokens = 0
    for time, together in groupby(score.times):
        tokens += len(list(together))
        share = time / end if end else 1.0
        if share > 1:
            (before, done), (width, height) = points[-1], (share, tokens / whole)
            points.append((1.0, done + (height - done) * (1 - before) / (width - before)))
            return points
        points.append((share, tokens / whole))
    if points[-1][0] < 1:
        points.append((1.0, points[-1][1]))
    return points


def _motion(index: int, course: list[Point], end: float) -> Iterator[str]:
    """The rules by which lane `index` moves and what stands beside it comes to sight."""
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


def _scale(whole: int, bottom: float) -> Iterator[str]:
    """Ticks of tokens above the lanes, and the flag where the longest text ends."""
    apart = next((each for each in TICKS if whole / each <= 8), whole)
    for tokens in range(0, whole, apart):
        x = BEGIN + LENGTH * tokens / whole
        yield line(((x, TOP - 4), (x, bottom)), RULE)
        if whole - tokens > apart / 2:
            yield text(x, TOP - 12, f"{tokens}", 14, SOFT, "middle")
    x = BEGIN + LENGTH
    yield line(((x, TOP - 20), (x, bottom)), INK, 2)
    for square in range(6):
        colour = INK if (square % 3 + square // 3) % 2 == 0 else PANEL
        yield box(x + square % 3 * 6, TOP - 20 + square // 3 * 6, 6, 6, colour)
    yield text(x + 24, TOP - 10, counted(whole, "token"), 14)


def _lane(made: Scoreboard, index: int, finish: Point, place: int, middle: float) -> Iterator[str]:
    """A column's name, its lane as it stands at the photo finish, its place there (0: none) and its
    speed-up.
    """
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
    if place:
        yield _moved(
            "r", text(BEGIN + LENGTH + 24, middle + 7, _ordinal(place), 20, INK, bold=True)
        )


def _ordinal(place: int) -> str:
    return {1: "1st", 2: "2nd", 3: "3rd"}.get(place, f"{place}th")


def _moved(name: str, part: str) -> str:
    """The same in a group that the style sheet moves."""
    return f'<g class="{name}">\n{part}</g>\n'


def _foot(record: RaceRecord, doubt: str, end: float, top: float) -> Iterator[str]:
    """How fast the picture is beside the race, when and where that was; what leaves the timings in
    doubt.
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
