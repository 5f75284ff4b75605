"""The track: how far each column had come by the time at which the first one finished.

A lane goes by its column's own clock, so the lanes of one moment have had equal compute. It begins
at the first token where all columns read the same prompt in the same way, and else with the prompt.
Its position is how many tokens the answer had by then; of a program, whose columns do not write
equally many tokens, how many characters of its text.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Literal

from backend.programs.parser import Text, is_program, parse_program
from backend.results.scoreboard import ENDED, Scoreboard
from backend.types import Request

Unit = Literal["token", "character"]

#: Why a column ended that stops early by its own setting: it never meant to finish.
BY_DESIGN = "photo finish"

#: Columns whose speed-ups differ by less than this factor are as good as equal.
ALIKE = 1.05

#: Tokens of the longest text from which on a race that runs has places and speeds.
SETTLED = 8

#: Moments at most at which it is told how a race stood.
MOMENTS = 60


@dataclass(frozen=True, slots=True)
class Standing:
    """The lane `column` was in the lead at a moment of the race, or at its end: the photo finish.
    `seconds` are of its own clock since the lane's beginning, `length` is its position then.
    """

    column: int
    seconds: float
    length: int
    finished: bool = False


def goal_of(request: Request) -> int:
    """Where the finish is expected: the most tokens that an answer may have; of a program the
    characters of its fixed text.
    """
    if not is_program(request.prompt):
        return request.max_new_tokens
    nodes = parse_program(request.prompt).nodes
    return sum(len(node.text) for node in nodes if isinstance(node, Text))


def unit_of(board: Scoreboard) -> Unit:
    return "character" if any(score.fed for score in board.scores) else "token"


def with_prompt(board: Scoreboard) -> bool:
    """True if lanes begin with the prompt: one column may read it faster than another, and not by
    chance alone.
    """
    local = all(column.strategy.ours for column in board.columns)
    ways = {(column.model, column.cache) for column in board.columns}
    return not local or len(ways) > 1 or unit_of(board) == "character"


def beginning(board: Scoreboard, index: int) -> float:
    """What the column's own clock read when its lane began: 0, or at its first token."""
    begun = _first_token(board, index)
    return 0.0 if with_prompt(board) or begun == inf else begun


def _first_token(board: Scoreboard, index: int) -> float:
    """What the column's own clock read at its first token; infinity before it."""
    return next((moment.clock for moment in board.scores[index].moments if moment.tokens), inf)


def position(board: Scoreboard, index: int, seconds: float = inf) -> int:
    """How far the column's lane is so many seconds of its own clock after its beginning."""
    score, begun = board.scores[index], beginning(board, index)
    moments = score.moments[: bisect_right(score.moments, seconds, key=lambda m: m.clock - begun)]
    if unit_of(board) == "character":
        return sum(len(text) for moment in moments for _, text in moment.spans)
    return moments[-1].start + moments[-1].tokens if moments else 0


def photo_finish(board: Scoreboard) -> Standing | None:
    """The first lane that was in the lead when its text ended; None while there is none, or one
    that still runs may have been quicker: lanes take turns. A lane whose text ended behind another
    one's did not finish first: its text is merely shorter.
    """
    lanes = [
        (index, score)
        for index, score in enumerate(board.scores)
        if score.state != "failed" and not answers_otherwise(board, index)
    ]
    ended = sorted(
        (_gone(board, index, score.moments[-1].clock), index)
        for index, score in lanes
        if score.state == "done" and score.reason != BY_DESIGN and score.moments
    )
    reached = min(
        (_gone(board, i, s.seconds) for i, s in lanes if s.state not in ENDED and s.clock == "own"),
        default=inf,
    )
    for seconds, index in ended:
        if seconds > reached:
            return None
        length = position(board, index)
        if length and all(position(board, i, seconds) <= length for i, _ in lanes):
            return Standing(index, seconds, length, finished=True)
    return None


def standing(board: Scoreboard) -> Standing | None:
    """How the race stands: the photo finish, or before it the lane in the lead at the latest clock
    that all lanes have reached, where they had equal compute; None while there is none.
    """
    if finish := photo_finish(board):
        return finish
    racing = [i for i in taking_turns(board) if not answers_otherwise(board, i)]
    if not racing:
        return None
    seconds = min(_gone(board, i, board.scores[i].seconds) for i in racing)
    lengths = [position(board, i, seconds) for i in racing]
    longest = max(lengths)
    return Standing(racing[lengths.index(longest)], seconds, longest) if longest else None


def taking_turns(board: Scoreboard) -> list[int]:
    """The columns that still run and take turns with others."""
    return [
        i
        for i, (column, score) in enumerate(zip(board.columns, board.scores, strict=True))
        if score.state not in ENDED and not column.strategy.alone
    ]


def standings(board: Scoreboard) -> Iterator[Standing]:
    """How the race stood at a few moments up to the photo finish, which is the last of them."""
    finish = photo_finish(board)
    if finish is None:
        return
    running = [i for i in range(len(board.scores)) if _placed(board, i, finish)]
    for moment in range(1, MOMENTS):
        seconds = finish.seconds * moment / MOMENTS
        lengths = [position(board, i, seconds) for i in running]
        longest = max(lengths)
        begun = longest >= SETTLED
        if unit_of(board) == "character":  # given text is no lead
            begun = all(_first_token(board, i) <= seconds for i in running)
        if begun:
            yield Standing(running[lengths.index(longest)], seconds, longest)
    yield finish


def place(board: Scoreboard, index: int, now: Standing) -> int:
    """The lane's place at a moment, from 1; equal lanes share one. 0: it has none, because it had
    stopped before, or goes by another clock than the first one.
    """
    at, _ = ranks(board, now).get(index, (0, False))
    return at


def ranks(board: Scoreboard, now: Standing) -> dict[int, tuple[int, bool]]:
    """The place of each lane that has one, from 1, and whether others share it: equal lanes do."""
    placed = [i for i in range(len(board.scores)) if _placed(board, i, now)]
    order = {i: length_at(board, i, now) for i in placed}
    found: dict[int, tuple[int, bool]] = {}
    for value in sorted(set(order.values()), reverse=True):
        group = [i for i in placed if order[i] == value]
        found |= dict.fromkeys(group, (1 + len(found), len(group) > 1))
    return found


def as_fast(board: Scoreboard, best: int) -> list[int]:
    """The columns that are about as fast as the faster column `best`, or as fast as that may be."""
    if board.pace(best) != "faster":
        return []
    least = min(board.speedup(best) / ALIKE, board.gain(best).low)
    faster = [i for i in range(len(board.scores)) if board.pace(i) == "faster"]
    return [i for i in faster if board.speedup(i) >= least]


def settles(board: Scoreboard, now: Standing | None) -> bool:
    """True if lanes can be as long as their speed-ups have them: from the photo finish on, where
    the first to finish has about the highest speed-up.
    """
    if now is None or not now.finished:
        return False
    placed = [i for i in range(len(board.scores)) if _placed(board, i, now)]
    best = speed_of(board, now.column)
    return best > 0 and ALIKE * best >= max(speed_of(board, i) for i in placed)


def length_at(board: Scoreboard, index: int, now: Standing | None) -> float:
    """How long the lane is drawn at a moment; None: as far as it is. From the photo finish on,
    lanes are in proportion to their speed-ups and the winner's ends at the flag: what bars and
    figures say is the same, while the other texts go on and when all have ended. Lanes without a
    speed are as they were at the finish. So are all where a lane behind the winner's has a clearly
    higher speed-up.
    """
    if now is None:
        return position(board, index)
    own = speed_of(board, index) if settles(board, now) else 0.0
    if not own:
        return position(board, index, now.seconds)
    return min(1.0, own / speed_of(board, now.column)) * now.length


def speed_of(board: Scoreboard, index: int) -> float:
    """The lane's speed-up, 1 of the baseline; 0: unknown."""
    return 1.0 if index == board.baseline_index else board.speedup(index)


def early(board: Scoreboard) -> bool:
    """True of a race that has hardly begun: its places and speeds are chance. In a program, text
    that is given is no lead.
    """
    if board.ended:
        return False
    if unit_of(board) == "character":
        return any(not board.scores[i].length for i in taking_turns(board))
    return max(score.length for score in board.scores) < SETTLED


def won(board: Scoreboard, index: int) -> bool:
    """True if the lane was in the lead at the photo finish; equal lanes share that."""
    finish = photo_finish(board)
    return finish is not None and place(board, index, finish) == 1


def answers_otherwise(board: Scoreboard, index: int) -> bool:
    """True if the column's grammar made it write another text than the baseline, so who wrote it
    first says nothing: an answer in another form is another race.
    """
    base = board.baseline_index
    bound = base is not None and board.columns[index].grammar != board.columns[base].grammar
    return bound and board.sameness(index) == "allowed"


def _placed(board: Scoreboard, index: int, finish: Standing) -> bool:
    score, winner = board.scores[index], board.scores[finish.column]
    last = _gone(board, index, score.moments[-1].clock if score.moments else 0.0)
    stopped = score.state in ENDED and score.reason != BY_DESIGN
    gone = stopped and last < finish.seconds
    same_race = score.clock == winner.clock and not answers_otherwise(board, index)
    return score.state != "failed" and same_race and not gone


def _gone(board: Scoreboard, index: int, clock: float) -> float:
    """How long ago the lane began when the column's own clock reads so much."""
    return max(0.0, clock - beginning(board, index))
