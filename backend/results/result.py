"""What a race came to: one value, which the page, the terminal, files and programs print.

A column's speed-up at a moment t is what it had written by then over what the baseline had written
at the same reading of its own clock, both counted from their first tokens. While a race runs, t is
now. In the end it is the photo finish: the first end among the columns that write the baseline's
text. A column whose text ended before is measured at its own end. Every figure beside a speed-up is
of the same moment, but for those that are named as the whole text's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from math import inf
from typing import Literal

from backend.results.intervals import UNKNOWN, Commit, Ratio, at, paired, rate, unpaired
from backend.results.scoreboard import ENDED, Score, Scoreboard, State
from backend.results.texts import Sameness, Text, same_work, texts_of

Unit = Literal["token", "character"]

#: How a column's speed compares, once that is sure to stay so: "unclear" if its interval holds 1,
#: "same work" if it did what the baseline does, "short" if it ended too soon to tell; else "", as
#: of a column that ran once while no other did.
Verdict = Literal["baseline", "faster", "slower", "unclear", "same work", "short", ""]

#: Others used more than BUSY of the machine, or so much (NOISY) that no speeds can be told apart.
Doubt = Literal["", "busy", "noisy"]
BUSY, NOISY = 0.25, 0.5

#: Where neither column has written so many tokens, there is no ratio of them.
LEAST_TOKENS = 20

#: Seconds by which sums of rounded times may differ.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Row:
    """One column at its moment. `amount` is in the result's unit, behind the first token, `passes`
    are those of the target that wrote it, and `baseline_amount` and `baseline_passes` the
    baseline's by the same reading of its clock (0: there is none). `speedup` is 0 where there is
    none, `whole_time` the same of whole texts, their prompts included; `message` why the column
    failed.
    """

    column: int
    name: str
    state: State
    unit: Unit
    moment: float
    amount: float
    passes: float
    baseline_amount: float
    baseline_passes: float
    speedup: Ratio
    whole_time: float
    verdict: Verdict
    comparison: Text
    score: Score = field(repr=False)
    commits: Sequence[Commit] = field(repr=False)  # what it wrote with each step

    @property
    def baseline(self) -> bool:
        return self.verdict == "baseline"

    @property
    def text(self) -> Sameness:
        return self.comparison.sameness

    @property
    def rate(self) -> float:
        """Of the unit in a second."""
        return self.amount / self.moment if self.moment else 0.0

    @property
    def baseline_rate(self) -> float:
        """The baseline's up to the same moment."""
        return self.baseline_amount / self.moment if self.moment else 0.0

    @property
    def tokens_per_pass(self) -> float:
        """Tokens that a pass of the target wrote; 0: unknown, and of programs, whose passes read
        too.
        """
        return self.amount / self.passes if self.passes and self.unit == "token" else 0.0

    @property
    def pass_time(self) -> float:
        """How many times as long a pass takes as one of the baseline; 0: unknown."""
        known = self.tokens_per_pass and self.speedup.value
        return self.baseline_passes / self.passes if known else 0.0

    @cached_property
    def until(self) -> Score:
        """The steps that had ended by the moment, folded."""
        score, part = self.score, Score()
        for each in score.moments:
            if each.clock > score.start + self.moment + ROUNDING:
                break
            if each.step:
                part.seconds = each.clock - each.step.seconds["total"]
                part.add(each.step)
                part.moments[-1].proposed = each.proposed
        return part

    @property
    def message(self) -> str:
        return self.score.message


@dataclass(frozen=True, slots=True)
class Result:
    """`rows` are in the order of the columns. `final`: all columns have ended by themselves, and it
    is known who else used the machine. Only then `leaders` has columns with the baseline's text
    that are shown to be faster, the fastest first: behind it those that are not shown to be slower.
    `moment` is the t of the whole race, in seconds behind the first token, None before there is
    one; `finished`: it is the photo finish. A program's unit is the character.
    """

    rows: tuple[Row, ...]
    leaders: tuple[int, ...]
    doubt: Doubt
    moment: float | None
    finished: bool
    final: bool
    unit: Unit

    @property
    def baseline(self) -> Row | None:
        return next((row for row in self.rows if row.baseline), None)

    @property
    def texts(self) -> Literal["same", "changed", ""]:
        """Whether those that must match do."""
        compared = {row.text for row in self.rows} - {"", "different"}
        return "changed" if "changed" in compared else "same" if compared else ""

    def wrote_baseline_text(self, row: Row) -> bool:
        """True if the column's text is the baseline's, as far as both go."""
        return self.baseline is not None and row.comparison.like == self.baseline.column


def result_of(board: Scoreboard) -> Result:
    """What the events so far come to."""
    unit: Unit = "character" if any(score.fed for score in board.scores) else "token"
    progress = [progress_of(score, unit) for score in board.scores]
    texts = texts_of(board)
    ends = [commits[-1].clock for commits in progress if commits]
    finish = _photo_finish(board, progress, texts)
    doubt: Doubt = "noisy" if board.others > NOISY else "busy" if board.others > BUSY else ""
    cut = any(score.reason == "stopped" for score in board.scores)
    final = board.ended and board.conditions is not None and not cut
    judged = final and doubt != "noisy"
    rows = tuple(
        _row(board, index, progress, finish, texts[index], unit, judged=judged)
        for index in range(len(board.columns))
    )
    result = Result(
        rows,
        (),
        doubt,
        max(ends, default=None) if finish is None else finish,
        finish is not None,
        final,
        unit,
    )
    return replace(result, leaders=_leaders(board, result, progress))


def _leaders(
    board: Scoreboard, result: Result, progress: Sequence[Sequence[Commit]]
) -> tuple[int, ...]:
    """The fastest of the columns with the baseline's whole text that are shown to be faster, and
    behind it those of which it is not shown that they are slower: neither by the ratio of the two
    nor by their intervals, which lie apart.
    """
    fastest = sorted(result.rows, key=lambda row: -row.speedup.value)
    same = [row for row in fastest if row.text == "same" and result.wrote_baseline_text(row)]
    best = next((row for row in same if row.verdict == "faster"), None)
    if best is None:
        return ()
    leaders = [best.column]
    for row in same:
        near = row.verdict in ("faster", "unclear") and row.speedup.high >= best.speedup.low
        if near and row is not best:
            moment = min(best.moment, row.moment)
            ahead = _ratio(board, progress, best.column, row.column, moment)
            leaders += [] if ahead.above else [row.column]
    return tuple(leaders)


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
            ahead = min(step.origins.count("forced"), max(moment.tokens - 1, 0))
            commits.append(Commit(0.0, ahead, step.rows, step.calls))
        else:
            clock, passes = moment.clock - score.ttft, score.passes_of(step)
            commits.append(Commit(clock, moment.tokens, step.rows, step.calls, passes))
    return commits


def _photo_finish(
    board: Scoreboard, progress: Sequence[Sequence[Commit]], texts: Sequence[Text]
) -> float | None:
    """When the first of the columns that write the baseline's text ended, by promise while the
    baseline itself still writes; None: none has. Whose whole text came at once was not timed.
    """
    if (base := board.baseline_index) is None:
        return None
    ended = board.baseline.state in ENDED
    ends = [
        progress[i][-1].clock
        for i, score in enumerate(board.scores)
        if score.state == "done" and score.reason != "photo finish"
        if progress[i] and progress[i][-1].clock
        if texts[i].like == base and (ended or same_work(board, i, base))
    ]
    return min(ends, default=None)


def _row(
    board: Scoreboard,
    index: int,
    progress: Sequence[Sequence[Commit]],
    finish: float | None,
    text: Text,
    unit: Unit,
    *,
    judged: bool,
) -> Row:
    score, base, own = board.scores[index], board.baseline_index, progress[index]
    theirs = progress[base] if base is not None else []
    ends = [commits[-1].clock for commits in (own, theirs) if commits]
    moment = min([*ends, inf if finish is None else finish]) if ends else 0.0
    amount, passes = _written(score, own, moment)
    their_amount, their_passes = _written(board.baseline, theirs, moment)
    ratio = UNKNOWN
    enough = max(amount, their_amount) >= LEAST_TOKENS
    if base is not None and index != base and score.state != "failed" and own and theirs and enough:
        ratio = _ratio(board, progress, index, base, moment)
    whole = text.sameness == "same" and text.like == base and score.clock == board.baseline.clock
    return Row(
        index,
        board.names[index],
        score.state,
        unit,
        moment,
        amount,
        passes,
        their_amount,
        their_passes,
        Ratio(1.0) if index == base and own else ratio,
        board.baseline.seconds / score.seconds if whole and score.seconds else 0.0,
        _verdict(board, index, ratio, judged=judged),
        text,
        score,
        own,
    )


def _runs(score: Score, own: Sequence[Commit]) -> list[Sequence[Commit]]:
    """What a column wrote in each of its runs."""
    repeats = (map(Commit, accumulate(run.times), run.tokens) for run in score.repeats)
    return [own, *([Commit(0.0, 0), *run] for run in repeats)]


def _ratio(
    board: Scoreboard,
    progress: Sequence[Sequence[Commit]],
    one: int,
    other: int,
    moment: float,
) -> Ratio:
    """How many times as fast one column is as another: by slices of the time in which they took
    turns, or by the runs of those that cannot.
    """
    scores = board.scores
    if any(board.columns[i].strategy.alone for i in (one, other)):
        ours, theirs = (_runs(scores[i], progress[i]) for i in (one, other))
        ratio = unpaired(ours, theirs, moment)
    else:
        ratio = paired(progress[one], progress[other], moment)
    alike = scores[one].clock == scores[other].clock
    return ratio if alike else Ratio(ratio.value)  # another machine's time


def _written(score: Score, own: Sequence[Commit], moment: float) -> tuple[float, float]:
    """What a column had written at a moment, and in how many passes: of several runs the mean."""
    amount, passes = at(own, moment)
    if not score.repeats or not amount:
        return amount, passes
    share = rate(_runs(score, own), moment) * moment / amount
    return share * amount, share * passes


def _verdict(board: Scoreboard, index: int, ratio: Ratio, *, judged: bool) -> Verdict:
    """`judged`: speeds are told apart in this race."""
    base, score, column = board.baseline_index, board.scores[index], board.columns[index]
    if base is None or index == base:
        return "" if base is None else "baseline"
    if score.state == "failed":
        return ""
    idle = column.plain or (score.decision.plain and not score.drafted)
    if idle and same_work(board, index, base):  # chance alone has made it faster or slower
        return "same work"
    if not judged or score.clock != board.baseline.clock:
        return ""
    if ratio.known:
        return "faster" if ratio.above else "slower" if ratio.below else "unclear"
    alone = column.strategy.alone or board.columns[base].strategy.alone
    return "" if ratio.value and alone else "short"
