"""What forward passes cost here, as the page draws it: the curve, and where the columns lie."""

from typing import Any

from backend.costs.pass_costs import PassCosts
from backend.results.metrics import Score
from backend.results.scoreboard import Scoreboard
from backend.strategies.registry import Strategy


def curve(board: Scoreboard) -> dict[str, Any] | None:
    """None while nothing is known. "points": rows, milliseconds and plain steps of each measured
    width; "marks": title, mean rows, tokens per forward, plain steps on the curve and a sentence of
    each column whose guesses were verified; "note": what else there is to know.
    """
    known = [score.costs for score in board.scores if score.costs.known]
    if not known:
        return None
    costs = known[0]
    pairs = zip(board.columns, board.scores, strict=True)
    return {
        "points": [
            [rows, round(costs(rows) * 1e3, 3), round(costs.relative(rows), 3)]
            for rows in costs.widths
        ],
        "marks": [_mark(row, score, costs) for row, score in pairs if _guesses(row, score)],
        "note": f"A plain step takes {costs.one_row * 1e3:.1f} ms here; a pass over another number "
        f"of rows than the one before takes {costs.width_change * 1e3:.1f} ms more. What "
        "drafting costs comes on top of the curve.",
    }


def mean_rows(score: Score) -> float:
    """Rows of a decode pass on average."""
    return sum(k * n for k, n in score.widths.items()) / max(score.widths.total(), 1)


def _guesses(strategy: Strategy, score: Score) -> bool:
    """True of columns whose passes are wide because guesses or forced tokens are verified: not
    because the cache is missing or a program's own text is read.
    """
    guessed = score.drafted or score.forced
    return bool(strategy.cache and guessed and score.steps > 1 and not score.fed)


def _mark(strategy: Strategy, score: Score, costs: PassCosts) -> list[Any]:
    rows, tokens = mean_rows(score), score.tokens_per_forward
    below = int(rows)
    low, high = costs.relative(below), costs.relative(below + 1)
    steps = low + (high - low) * (rows - below)
    verdict = "above the curve, it can pay" if tokens > steps else "below the curve, it cannot pay"
    told = f"{tokens:.2f} tokens from {rows:.1f} rows that cost {steps:.2f} plain steps: {verdict}"
    return [strategy.title, round(rows, 2), round(tokens, 3), round(steps, 3), told]
