"""The race in a sentence: who is fastest, by how much, why, and whether the texts agree."""

from backend.results.scoreboard import Scoreboard

#: Speeds closer than this count as equal: less than what two runs of one race differ by.
TIE = 0.03


def rate_text(rate: float) -> str:
    """Tokens a second, in as many digits as mean something."""
    return f"{rate:,.0f}" if rate >= 1000 else f"{rate:.1f}"


def pass_cost(board: Scoreboard, index: int) -> float:
    """How many times as long as KV reuse's this column's forward pass takes, drafting and masks
    included; 0 while unknown. Speed-up = tokens per pass / this.
    """
    speedup = board.speedup(index)
    return board.scores[index].tokens_per_forward / speedup if speedup else 0.0


def headline(board: Scoreboard) -> str:
    """A few short sentences on the race as far as it has come; "" while there is nothing to say."""
    if not board.ended:
        said = _speed(board)
        return f"So far: {said}" if said else ""
    states = {score.state for score in board.scores}
    if states == {"failed"}:
        return "No column finished: each one says why."
    said = _speed(board) or "Too few tokens were written to compare speeds."
    if "stopped" in states:
        return f"Stopped early. {said}"
    return f"{said} {_texts(board)}".strip()


def _program(board: Scoreboard) -> str:
    """How long each column took for a program's slots."""
    base = board.baseline
    done = [i for i, score in enumerate(board.scores) if score.state == "done"]
    if base is None or base.state != "done":
        return "".join(
            f"{board.columns[i].title} took {board.scores[i].seconds:.2f} s. " for i in done
        ).strip()
    others = [
        f"{board.columns[i].title} takes {board.scores[i].seconds / base.seconds:.2f} times as long"
        for i in done
        if board.scores[i] is not base
    ]
    told = f"KV reuse ran the program in {base.seconds:.2f} s"
    return f"{told}; {', '.join(others)}." if others else f"{told}."


def _speed(board: Scoreboard) -> str:
    """Who is fastest of those that keep the text, and whether a grammar is faster still."""
    if any(score.fed for score in board.scores):
        return _program(board)
    known = [i for i, score in enumerate(board.scores) if score.tpot and score.state != "failed"]
    if not known:
        return ""
    keeping = [i for i in known if board.columns[i].lossless]
    best = min(keeping or known, key=lambda i: board.scores[i].tpot)
    said = _best(board, best, alone=len(keeping) == 1)
    fastest = min(known, key=lambda i: board.scores[i].tpot)
    gain = board.speedup(fastest)
    if board.columns[fastest].lossless or fastest == best or gain < 1 + TIE:
        return said
    return (
        f"{said} {board.columns[fastest].title}, which writes a text of its own, is {_times(gain)}."
    )


def _best(board: Scoreboard, best: int, *, alone: bool) -> str:
    title, rate = board.columns[best].title, board.scores[best].tokens_per_second
    base, gain = board.baseline, board.speedup(best)
    if base is None or not base.tpot:
        return f"{title} is fastest with {rate_text(rate)} tokens a second."
    plain = f"{rate_text(base.tokens_per_second)} tokens a second"
    if alone:
        return f"KV reuse writes {plain}."
    if gain < 1 + TIE:
        return f"Nothing that keeps the text is faster than KV reuse with its {plain}."
    return (
        f"{title} is {_times(gain)} as KV reuse "
        f"({rate_text(rate)} against {plain}){_because(board, best)}."
    )


def _times(gain: float) -> str:
    return f"{gain:.2f} times as fast"


def _because(board: Scoreboard, index: int) -> str:
    per_pass, cost = board.scores[index].tokens_per_forward, pass_cost(board, index)
    if per_pass > 1 + TIE:
        return f": {per_pass:.2f} tokens a pass, and a pass takes {cost:.2f} times as long"
    return f": a pass takes {cost:.2f} times as long"


def _texts(board: Scoreboard) -> str:
    """Whether the columns that must agree do."""
    base = board.baseline
    if base is None or not base.tokens:
        return ""
    others = [
        i
        for i, score in enumerate(board.scores)
        if board.must_match(i) and score.tokens and score.state != "failed"
    ]
    if not others:
        return ""
    changed = [board.columns[i].title for i in others if board.difference(i) is not None]
    if changed:
        return f"The text changed in {' and '.join(changed)}."
    if any(board.reference(i) != board.reference(others[0]) for i in others):
        return f"All {len(others)} columns that must keep a text kept it."
    kept = board.columns[board.reference(others[0]) or 0].title
    if len(others) == 1:
        return f"{board.columns[others[0]].title} wrote the same text as {kept}."
    all_of_them = "Both" if len(others) == 2 else f"All {len(others)}"
    return f"{all_of_them} columns that must keep the text wrote what {kept} wrote."
