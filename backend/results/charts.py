"""What forward passes cost here, as the page draws it: the curve, and where the columns lie."""

from typing import Any

from backend.costs.pass_costs import PassCosts
from backend.results.figures import counted
from backend.results.metrics import Score
from backend.results.scoreboard import Scoreboard
from backend.results.sentences import pass_cost


def cost_curve(board: Scoreboard) -> dict[str, Any] | None:
    """The baseline's curve, or the first that is known, with the columns on the same model; None
    while nothing is known. "points": of each measured width its rows, its plain steps and
    a line of words; "cells": the same as a table; "marks": one for each column whose guesses were
    verified, see `_mark`; "note": what else there is to know.
    """
    known = [score for score in (board.baseline, *board.scores) if score.costs.known]
    if not known:
        return None
    costs, spec = known[0].costs, known[0].spec
    cells = [
        [str(rows), f"{seconds * 1e3:.1f}", f"{costs.relative(rows):.2f}"]
        for rows, seconds in zip(costs.widths, costs.seconds, strict=True)
    ]
    return {
        "points": [
            [k, round(costs.relative(k), 3), f"{counted(k, 'row')}: {ms} ms, {steps} plain steps"]
            for k, (_, ms, steps) in zip(costs.widths, cells, strict=True)
        ],
        "cells": cells,
        "marks": [
            _mark(board, i, costs)
            for i, score in enumerate(board.scores)
            if score.spec == spec and board.columns[i].strategy.keeps_cache and _guesses(score)
        ],
        "note": f"A plain step takes {costs.one_row * 1e3:.1f} ms here; a pass over another number "
        f"of rows than the one before takes {costs.width_change * 1e3:.1f} ms more. What "
        "drafting costs comes on top of the curve.",
    }


def _guesses(score: Score) -> bool:
    """True of columns whose passes are wide because drafts or forced tokens are verified, not
    because a program's own text is read.
    """
    return bool((score.drafted or score.forced) and score.passes and not score.fed)


def _mark(board: Scoreboard, index: int, costs: PassCosts) -> dict[str, Any]:
    """Where a column lies: the rows of its average pass, the tokens that come out of it, what it
    costs in plain steps, whether that is shown to pay, and a sentence. The cost is what the column
    took in this race, as on its card; without a baseline, what the curve says.
    """
    score = board.scores[index]
    rows, tokens = score.mean_rows, score.tokens_per_forward
    measured = pass_cost(board, index)
    steps, pace = measured or costs.average(rows) / costs.one_row, board.pace(index)
    cost = f"{'cost' if measured else 'should cost'} {steps:.2f} plain steps"
    verdict = {"faster": "it pays", "slower": "it does not pay"}.get(pace, "no clear difference")
    if not measured:
        verdict = "it should pay" if tokens > steps else "it should not pay"
    return {
        "name": board.name(index),
        "rows": round(rows, 2),
        "tokens": round(tokens, 3),
        "steps": round(steps, 3),
        "pace": pace,
        "sentence": f"{tokens:.2f} tokens from {rows:.1f} rows that {cost}: {verdict}",
    }
