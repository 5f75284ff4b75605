"""The race in a sentence: who is fastest, by how much, why, and whether the texts agree."""

from backend.scoreboard import Scoreboard

#: Speeds closer than this count as equal: less than what two runs of one race differ by.
TIE = 0.03


def pass_cost(board: Scoreboard, index: int) -> float:
    """How many times as long as KV reuse this column takes for a forward pass with all that goes
    with it (drafting, masks); 0 while unknown. Speed-up = tokens per pass / this."""
    speedup = board.speedup(index)
    return board.scores[index].tokens_per_forward / speedup if speedup else 0.0


def headline(board: Scoreboard) -> str:
    """Sentences on the race as far as it has come; says so when nothing can be compared."""
    if board.ended and all(score.state == "failed" for score in board.scores):
        return "No column finished: see the reasons below."
    return " ".join(filter(None, (_speed(board), _texts(board)))) or _outcome(board)


def _outcome(board: Scoreboard) -> str:
    return "Too few tokens were written to compare." if board.ended else ""


def _speed(board: Scoreboard) -> str:
    known = [i for i, score in enumerate(board.scores) if score.tpot and score.state != "failed"]
    if not known:
        return ""
    best = min(known, key=lambda i: board.scores[i].tpot)
    title, rate = board.columns[best].title, board.scores[best].tokens_per_second
    is_, runs = ("is", "ran at") if board.ended else ("leads:", "at")
    base = board.baseline
    if base is None or not base.tpot:
        verb = "was fastest" if board.ended else "leads"
        return f"{title} {verb} with {rate:,.1f} tokens a second."
    gain = board.speedup(best)
    if board.scores[best] is base or gain < 1 + TIE:
        others = len(known) - 1
        if not others:
            return f"KV reuse {runs} {base.tokens_per_second:,.1f} tokens a second."
        tense = "was" if board.ended else "is"
        return f"Nothing {tense} faster than KV reuse ({base.tokens_per_second:,.1f} tokens a second)."
    return (
        f"{title} {is_} {gain:.2f} times as fast as KV reuse "
        f"({rate:,.1f} against {base.tokens_per_second:,.1f} tokens a second)"
        f"{_because(board, best)}."
    )


def _because(board: Scoreboard, index: int) -> str:
    per_pass, cost = board.scores[index].tokens_per_forward, pass_cost(board, index)
    if per_pass > 1 + TIE:
        return f": {per_pass:.2f} tokens a pass, and a pass takes {cost:.2f} times as long"
    return f": a pass takes {cost:.2f} times as long"


def _texts(board: Scoreboard) -> str:
    """Whether the columns that must agree do; only at the end, when it is known."""
    base = board.baseline
    if not board.ended or base is None or not base.tokens:
        return ""
    others = [
        i
        for i, (strategy, score) in enumerate(zip(board.columns, board.scores, strict=True))
        if strategy.lossless and score is not base and score.tokens and score.state != "failed"
    ]
    if not others:
        return ""
    changed = [board.columns[i].title for i in others if board.difference(i) is not None]
    if changed:
        return f"The text changed in {' and '.join(changed)}."
    if len(others) == 1:
        return f"{board.columns[others[0]].title} wrote the same text as KV reuse."
    return f"All {len(others)} columns that must keep the text wrote what KV reuse wrote."
