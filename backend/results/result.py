"""What a race came to: one value, which the page, the terminal, files and programs print.

A column's speed-up at a moment t is what it had written by then over what the baseline had written
at the same reading of its own clock, both counted from their first tokens. While a race runs, t is
now. In the end it is the photo finish: the first end among the columns that write the baseline's
text. A column whose text ended before is measured at its own end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from backend.results.intervals import UNKNOWN, Commit, Ratio, paired
from backend.results.scoreboard import ENDED, Difference, Score, Scoreboard, State

Unit = Literal["token", "character"]

#: Of a column's text: the one that it must match; another although it must not be; another as it
#: may be; not compared.
Sameness = Literal["same", "changed", "different", ""]

#: How a column's speed compares: "unclear" if its interval holds 1, "same work" if it did what the
#: baseline does, "short" if it ended too soon to tell, "" while that is open.
Verdict = Literal["baseline", "faster", "slower", "unclear", "same work", "short", ""]

#: Others used more than BUSY of the machine, or so much (NOISY) that no speeds can be told apart.
Doubt = Literal["", "busy", "noisy"]
BUSY, NOISY = 0.25, 0.5

#: Where neither column has written so many tokens, there is no ratio of them.
LEAST_TOKENS = 20


@dataclass(frozen=True, slots=True)
class Row:
    """One column at its moment. `amount` is in the result's unit, behind the first token; `rate` in
    tokens a second; `saved` in seconds, up to the moment, against the baseline (negative: lost).
    `speedup` is 0 where there is none, `message` why the column failed.
    """

    column: int
    name: str
    state: State
    amount: float
    moment: float
    speedup: Ratio
    verdict: Verdict
    text: Sameness
    difference: Difference | None
    score: Score = field(repr=False)

    @property
    def baseline(self) -> bool:
        return self.verdict == "baseline"

    @property
    def rate(self) -> float:
        """Up to the moment, as the speed-up is; of a program, whose unit is another, as a whole."""
        if self.score.fed:
            return self.score.tokens_per_second
        return self.amount / self.moment if self.moment else 0.0

    @property
    def saved(self) -> float:
        return self.moment * (self.speedup.value - 1) if self.speedup.value else 0.0

    @property
    def message(self) -> str:
        return self.score.message


@dataclass(frozen=True, slots=True)
class Result:
    """`rows` are in the order of the columns. `winner` is the column with the highest speed-up of
    those with the baseline's text that are shown to be faster. `texts`: whether those that must
    match do. `moment` is the t of the whole race, in seconds behind the first token, None before
    there is one; `finished`: it is the photo finish. A program's unit is the character.
    """

    rows: tuple[Row, ...]
    winner: int | None
    doubt: Doubt
    texts: Literal["same", "changed", ""]
    moment: float | None
    finished: bool
    unit: Unit

    @property
    def baseline(self) -> Row | None:
        return next((row for row in self.rows if row.baseline), None)


def result_of(board: Scoreboard) -> Result:
    """What the events so far come to."""
    unit: Unit = "character" if any(score.fed for score in board.scores) else "token"
    progress = [progress_of(score, unit) for score in board.scores]
    ends = [commits[-1].clock for commits in progress if commits]
    finish = _photo_finish(board, progress)
    others = board.conditions.others if board.conditions else 0.0
    doubt: Doubt = "noisy" if others > NOISY else "busy" if others > BUSY else ""
    rows = tuple(_row(board, index, progress, finish, doubt) for index in range(len(board.columns)))
    faster = [row for row in rows if row.verdict == "faster" and _keeps_text(board, row)]
    compared = [
        row.text
        for row in rows
        if row.text and board.must_match(row.column) and row.state != "failed"
    ]
    return Result(
        rows,
        max(faster, key=lambda row: row.speedup.value).column if faster else None,
        doubt,
        ("changed" if "changed" in compared else "same") if compared else "",
        max(ends, default=None) if finish is None else finish,
        finish is not None,
        unit,
    )


def progress_of(score: Score, unit: Unit) -> list[Commit]:
    """What a column wrote with each step, by its own clock since its first token: tokens behind
    that one, those that a grammar forced beside it included. Of a program, by the clock since its
    beginning: characters, given ones too. [] before the first step.
    """
    commits = [Commit(0.0, 0)] if unit == "character" and score.steps else []
    characters = 0
    for moment in score.moments:
        step = moment.step
        if unit == "character":
            characters += sum(len(text) for _, text in moment.spans)
        if step is None:
            continue
        if unit == "character":
            commits.append(Commit(moment.clock, characters, step.rows, step.calls))
            characters = 0
        elif not commits:
            commits.append(Commit(0.0, score.ahead, step.rows, step.calls))
        else:
            clock = moment.clock - score.ttft
            commits.append(Commit(clock, moment.tokens, step.rows, step.calls))
    return commits


def _photo_finish(board: Scoreboard, progress: Sequence[Sequence[Commit]]) -> float | None:
    """When the first of the columns that write the baseline's text ended; None: none has."""
    base = board.baseline_index
    ends = [
        progress[i][-1].clock
        for i, score in enumerate(board.scores)
        if score.state == "done"
        and score.reason != "photo finish"
        and progress[i]
        and (i == base or (board.keeps_text(i) and sameness(board, i) != "changed"))
    ]
    return None if base is None else min(ends, default=None)


def _keeps_text(board: Scoreboard, row: Row) -> bool:
    """True if the column wrote the baseline's text, by promise or under a grammar of its own."""
    if row.text == "changed":
        return False
    alike = row.text == "same" and board.reference(row.column) == board.baseline_index
    return alike or board.keeps_text(row.column)


def _row(
    board: Scoreboard,
    index: int,
    progress: Sequence[Sequence[Commit]],
    finish: float | None,
    doubt: Doubt,
) -> Row:
    score, base, own = board.scores[index], board.baseline_index, progress[index]
    theirs = progress[base] if base is not None else []
    ends = [commits[-1].clock for commits in (own, theirs) if commits]
    moment = min([*ends, inf if finish is None else finish]) if ends else 0.0
    over = finish is not None or score.state in ENDED
    ratio = UNKNOWN
    longest = max(amount_at(own, moment), amount_at(theirs, moment))
    if index != base and score.state != "failed" and own and theirs and longest >= LEAST_TOKENS:
        ratio = paired(own, theirs, moment, over=over)
        if score.clock != board.baseline.clock:  # another machine's time
            ratio = Ratio(ratio.value)
    return Row(
        index,
        board.name(index),
        score.state,
        amount_at(own, moment),
        moment,
        Ratio(1.0) if index == base and own else ratio,
        _verdict(board, index, ratio, doubt),
        sameness(board, index),
        board.difference(index),
        score,
    )


def amount_at(commits: Sequence[Commit], moment: float) -> float:
    """What a column had written at a moment; a step that was under way counts by its share."""
    amount, before = 0.0, 0.0
    for commit in commits:
        if commit.clock > moment:
            return amount + commit.tokens * (moment - before) / (commit.clock - before)
        amount, before = amount + commit.tokens, commit.clock
    return amount


def _verdict(board: Scoreboard, index: int, ratio: Ratio, doubt: Doubt) -> Verdict:
    score = board.scores[index]
    if index == board.baseline_index:
        return "baseline"
    if board.control(index):
        return "same work"
    if doubt == "noisy" or score.state == "failed" or score.clock != board.baseline.clock:
        return ""
    if ratio.known:
        return "faster" if ratio.above else "slower" if ratio.below else "unclear"
    return "short" if score.state in ENDED and board.baseline_index is not None else ""


def sameness(board: Scoreboard, index: int) -> Sameness:
    """How the column's text compares with its reference's, as far as both have come."""
    if not board.compared(index):
        return ""
    if board.difference(index) is None:
        return "same"
    return "changed" if board.must_match(index) else "different"
