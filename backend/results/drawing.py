"""A race as the page's board draws it: one JSON value, live, replayed or opened from a file."""

import json
from itertools import accumulate
from typing import Any

from backend.costs import PassCosts
from backend.events import Proposed
from backend.programs.parser import is_program
from backend.results.figures import FIGURES
from backend.results.result import Result, Row, result_of
from backend.results.scoreboard import ENDED, Moment, Scoreboard
from backend.results.sentences import beside, doubt, headline, mark, reasons, state
from backend.types import Request

Drawing = dict[str, Any]


class Drawer:
    """Draws a race that goes on: each column's steps are one string that grows by a JSON line a
    step, [seconds since its first token, amount behind it, [[origin, text], ...], detail], because
    what only grows is cheap to send.
    """

    def __init__(self, board: Scoreboard, request: Request, race: int = 0) -> None:
        self._board, self._request, self._race = board, request, race
        self._steps = ["" for _ in board.columns]
        self._drawn = [0 for _ in board.columns]  # moments

    def draw(self) -> Drawing:
        """The race as it is now."""
        board, result = self._board, result_of(self._board)
        ended, started = board.ended, any(row.state != "queued" for row in result.rows)
        status = board.preparing or headline(board, result)
        drawn: Drawing = {
            "race": self._race,
            "phase": "ended" if ended else "running" if started else "preparing",
            "status": status,
            "doubt": doubt(board, result),
            "noisy": result.doubt == "noisy",
            "unit": "character" if is_program(self._request.prompt) else "token",
            "limit": self._request.max_new_tokens,
            "moment": result.moment,
            "finished": result.finished,
            "leaders": list(result.leaders),
            "columns": [self._column(row, result, status) for row in result.rows],
        }
        return drawn | {"why": _why(board, result)} if ended else drawn

    def _column(self, row: Row, result: Result, status: str) -> Drawing:
        board, interval = self._board, row.speedup.interval
        column = board.columns[row.column]
        self._extend(row)
        return {
            "name": row.name,
            "note": column.gist,
            "state": row.state,
            "doing": state(row),
            "steps": self._steps[row.column],
            "speedup": round(row.speedup.value, 4) or None,
            "interval": [round(end, 4) for end in interval] if interval else None,
            "verdict": row.verdict,
            "text": row.text,
            "mark": mark(board, row),
            "beside": beside(row),
            "message": row.message if row.message != status else "",  # said once
        }

    def _extend(self, row: Row) -> None:
        """Add the moments that are new; one that was no step counts with the next, as in the
        result. What was proposed for the last one may still come.
        """
        index, moments, commits = row.column, row.score.moments, row.commits
        until = len(moments) - (0 if row.score.state in ENDED else 1)
        amounts = accumulate(commit.tokens for commit in commits)
        ends = [(commit.clock, amount) for commit, amount in zip(commits, amounts, strict=True)]
        # By number; that of a program begins with its beginning.
        ends = [(0.0, 0), *ends[row.unit == "character" :]]
        lines: list[str] = []
        for moment in moments[self._drawn[index] : until]:
            clock, amount = ends[moment.number]
            line = [round(clock, 5), amount, moment.spans, _detail(moment)]
            lines.append(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
        self._drawn[index] = max(until, self._drawn[index])
        self._steps[index] += "".join(lines)


def _detail(moment: Moment) -> Drawing | None:
    """The inside of a step: how wide its pass was and how long it took, what was guessed and what
    became of it, what the target chose behind that, and for each token that it committed the most
    likely ones in its place. None of what was no step.
    """
    step, proposed = moment.step, moment.proposed or Proposed(0, [], [], [], [], "")
    if step is None:
        return None
    ms = {part: round(seconds * 1e3, 2) for part, seconds in step.seconds.items()}
    return {
        "pass": moment.number,
        "rows": step.rows,
        "ms": ms["total"],
        "draft": ms.get("draft", 0.0),
        "mask": ms.get("mask", 0.0),
        "guesses": _guesses(proposed),
        "chosen": proposed.chosen,
        "window": proposed.scratch,
        "allowed": proposed.allowed[0] if proposed.allowed else None,
        "top": [[[text, round(p, 4)] for text, p in each] for each in proposed.top],
    }


def _guesses(proposed: Proposed) -> list[list[Any]]:
    """Each proposed token: its text, who proposed it, what became of it, and its place behind the
    text, 0 of one that the grammar cut off before the pass.

    The target chose a token behind the text so far and behind each accepted one, but behind the
    last of these only if the text went on.
    """
    by = [name for name, count in proposed.by for _ in range(count)]
    chose = {-1, *(proposed.path if proposed.chosen else proposed.path[:-1])}
    guesses = list[list[Any]]()
    for i, (parent, place) in enumerate(zip(proposed.links, proposed.places, strict=True)):
        fate = "rejected" if parent in chose else "not reached"
        fate = "accepted" if i in proposed.path else fate
        guesses.append([proposed.tokens[i], by[i], fate, place])
    pairs = list(zip(proposed.tokens, by, strict=True))[len(guesses) :]
    return guesses + [[token, name, "cut", 0] for token, name in pairs]


def _why(board: Scoreboard, result: Result) -> Drawing:
    """The figures that any column has, the time of a pass over its rows, and sentences."""
    figures = [
        figure for figure in FIGURES if any(figure.value(r) is not None for r in result.rows)
    ]
    return {
        "figures": {
            "headers": ["column", *(figure.title for figure in figures)],
            "rows": [[row.name, *(figure.cell(row) for figure in figures)] for row in result.rows],
        },
        "curve": _curve(board, result),
        "reasons": reasons(board, result),
    }


def _curve(board: Scoreboard, result: Result) -> list[Drawing]:
    """Points of T(k) / T(1) as it was measured on the baseline's model, and each column's average
    pass in this race.
    """
    costs: PassCosts = board.baseline.costs
    points = [
        {"rows": float(k), "times": round(costs.relative(k), 3), "of": "measured passes"}
        for k in (costs.widths if costs.known else ())
    ]
    return points + [
        {"rows": round(row.until.mean_rows, 2), "times": round(row.pass_time, 3), "of": row.name}
        for row in result.rows
        if row.score.started.spec == board.baseline.started.spec
        and board.columns[row.column].strategy.keeps_cache
        and row.pass_time
    ]
