"""Why a column is as fast as it is, in one plain sentence."""

from backend.drafters.lookahead_plan import LADDER, YIELDS, predicted
from backend.results.cost_curve import mean_rows
from backend.results.headline import TIE, pass_cost
from backend.results.metrics import Score
from backend.results.scoreboard import Scoreboard
from backend.strategies.registry import Strategy
from backend.strategies.settings import LookaheadDrafting

TIMES = "\N{MULTIPLICATION SIGN}"


def reason(board: Scoreboard, index: int) -> str:
    """The two factors of a speed-up, tokens per forward over what a forward costs; "" while unknown
    and for the baseline itself. A prediction stands beside the measurement where passes are priced.
    """
    strategy, score = board.columns[index], board.scores[index]
    cost, speedup = pass_cost(board, index), board.speedup(index)
    if not cost or score is board.baseline:
        return ""
    declined = _declined(strategy, score)
    if declined:
        return declined
    tokens = f"{score.tokens_per_forward:.2f} tokens per forward"
    if abs(speedup - 1) <= TIE:
        verdict, joint = "as fast as KV reuse here: ", ", and a"
    elif speedup > 1:
        verdict, joint = f"{speedup:.2f}{TIMES}: ", ", and a"
    else:
        verdict, joint = "slower here: ", ", but a"
    if not score.drafted and score.tokens_per_forward <= 1 + TIE:
        return f"{verdict}a step costs {cost:.2f} plain ones"
    rows = mean_rows(score)
    told = f"{verdict}{tokens}{joint} {rows:.0f}-row forward costs {cost:.2f} plain steps here"
    drafting = _drafting(board, score)
    if drafting:
        told += f", {drafting:.2f} of them drafting"
    return f"{told}; predicted {score.predicted:.2f}{TIMES}" if score.predicted else told


def _drafting(board: Scoreboard, score: Score) -> float:
    """Plain steps that drafting takes in a round, if it is worth telling."""
    base = board.baseline
    if base is None or not base.tpot or score.steps < 2:
        return 0.0
    share = score.parts["draft"] / (score.steps - 1) / base.tpot
    return share if share >= 0.05 else 0.0


def _declined(strategy: Strategy, score: Score) -> str:
    """What to say of a column that was free to guess and did not."""
    if not getattr(strategy.drafting, "auto", False) or score.drafted or score.steps < 2:
        return ""
    if not isinstance(strategy.drafting, LookaheadDrafting) or not score.costs.known:
        return "as KV reuse: no guess promised to pay here"
    best = max(LADDER, key=lambda setting: predicted(setting, score.costs))
    yields = YIELDS.tokens[best]
    cost = yields / predicted(best, score.costs)
    return (
        f"as KV reuse: lookahead would not pay enough, its {best.rows}-row forward costs "
        f"{cost:.2f} plain steps here and yields about {yields:.1f} tokens"
    )
