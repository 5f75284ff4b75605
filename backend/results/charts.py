"""How long passes take here, as the page draws it: the curve, and the columns on it."""

from typing import Any

from backend.costs.pass_costs import PassCosts
from backend.results.figures import TIMES, counted, factor
from backend.results.metrics import Score
from backend.results.scoreboard import Scoreboard
from backend.results.sentences import pass_cost


def cost_curve(board: Scoreboard) -> dict[str, Any] | None:
    """The baseline's curve, or the first that is known, with the columns on the same model; None
    while nothing is known. "points": of each measured width its rows, its time in one-token passes
    and a sentence; "cells": the same as a table; "marks": one for each column whose guesses were
    checked, see `_mark`; "note": what else there is to know.
    """
    known = [score for score in (board.baseline, *board.scores) if score.costs.known]
    if not known:
        return None
    costs, spec = known[0].costs, known[0].spec
    more = f"{costs.width_change * 1e3:.1f}"
    changed = f"A pass takes {more} ms more if the one before it had another number of rows. "
    cells = [[str(rows), f"{costs.relative(rows):.2f}"] for rows in costs.widths]
    return {
        "points": [
            [
                k,
                round(costs.relative(k), 3),
                f"{counted(k, 'row')}: {steps}{TIMES} as long",
            ]
            for k, (_, steps) in zip(costs.widths, cells, strict=True)
        ],
        "cells": cells,
        "marks": [
            _mark(board, i, costs)
            for i, score in enumerate(board.scores)
            if score.spec == spec and board.columns[i].strategy.keeps_cache and _guesses(score)
        ],
        "note": f"{changed if float(more) else ''}The curve does not include drafting.",
    }


def _guesses(score: Score) -> bool:
    """True if the column's passes are wide because guesses or forced tokens are checked, not
    because a program's own text is read.
    """
    return bool((score.drafted or score.forced) and score.passes and not score.fed)


def _mark(board: Scoreboard, index: int, costs: PassCosts) -> dict[str, Any]:
    """A column's place: the rows of its average pass, the tokens gained by it, its time in
    one-token passes, whether that is shown to pay, and a sentence. The time is that of this race,
    as on the card; without a baseline, that of the curve with the draft's passes.
    """
    score = board.scores[index]
    rows, tokens = score.mean_rows, score.tokens_per_forward
    measured = pass_cost(board, index)
    predicted = tokens / score.predicted if score.predicted else costs.relative(rows)
    steps, pace = measured or predicted, board.pace(index)
    cost = f"{'took' if measured else 'should take'} {factor(steps)} as long"
    unclear = "too noisy to tell" if board.noisy else "no clear difference"
    verdict = {"faster": "faster", "slower": "slower"}.get(pace, unclear)
    if not measured:
        verdict = "it should be faster" if tokens > steps else "it should be slower"
    return {
        "name": board.name(index),
        "rows": round(rows, 2),
        "tokens": round(tokens, 3),
        "steps": round(steps, 3),
        "pace": pace,
        "sentence": f"a pass wrote {tokens:.2f} tokens over {rows:.1f} rows and {cost}: {verdict}",
    }
