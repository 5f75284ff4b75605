"""A result in words: every sentence about a race is made here. Those about a benchmark are made in
`backend/bench/summary.py`.
"""

from math import isfinite

from backend.engines.registry import engines
from backend.events import Conditions
from backend.results.figures import (
    by_position,
    counted,
    duration,
    factor,
    listed,
    pass_cost,
    rate,
    span,
)
from backend.results.result import Doubt, Result, Row
from backend.results.scoreboard import ENDED, Score, Scoreboard

#: Of "Why?" at most.
MOST_REASONS = 5

_MARKS = {"same": "same text", "changed": "text changed", "different": "different text", "": ""}

#: Which clock times a column that a server writes.
_CLOCKS = {"server": "timed by the server", "network": "timed over the network"}


def headline(board: Scoreboard, result: Result) -> str:
    """Who won, by how much, and whether the texts are the same; before the end, what happens."""
    rows, messages = result.rows, {row.message for row in result.rows}
    if all(row.state == "failed" for row in rows):
        return messages.pop() if len(messages) == 1 else "No column finished."
    if not (result.finished or board.ended):
        return "Columns take turns; each is timed only while it computes."
    early = "Stopped early." if any(row.state == "stopped" for row in rows) else ""
    failed = [row.name for row in rows if row.state == "failed"]
    failures = f"{listed(failed)} failed." if failed else ""
    return " ".join(filter(None, (early, _speed(board, result), _texts(result), failures)))


def _speed(board: Scoreboard, result: Result) -> str:
    base = result.baseline
    if result.doubt == "noisy":
        return f"Too noisy to tell: {_others(board.conditions)}."
    if base is None:
        best = max(result.rows, key=lambda row: row.rate)
        wrote = f"{best.name} wrote {rate(best.rate)} tokens a second"
        return f"{wrote}; no KV reuse column ran, so there are no speed-ups." if best.rate else ""
    if result.winner is not None:
        best = result.rows[result.winner]
        much = f"{factor(best.speedup.value)} as fast as {base.name}{span(best.speedup)}"
        return f"{best.name} wins: {much}."
    if not any(row.speedup.known for row in result.rows if row is not base):
        return "The texts are too short to compare speeds." if len(result.rows) > 1 else ""
    return f"No column with the same text is measurably faster than {base.name}."


def _texts(result: Result) -> str:
    if result.texts == "changed":
        changed = [row.name for row in result.rows if row.text == "changed"]
        return f"The text changed in {listed(changed)}."
    if result.texts == "":
        return ""
    others = [row.name for row in result.rows if row.text == "different"]
    cut = any(_cut(row) for row in result.rows)
    same = f"texts are identical{' as far as they go' if cut else ''}."
    return f"{listed(others)} wrote another text; the other {same}" if others else f"All {same}"


def _cut(row: Row) -> bool:
    """True if there is, or would be, more of the column's text."""
    return row.text == "same" and (row.state != "done" or row.score.reason == "photo finish")


def doubt(board: Scoreboard, result: Result) -> str:
    """Why the speeds may be off; "" if they are not, or the headline says it."""
    return f"Speeds may be off: {_others(board.conditions)}." if result.doubt == "busy" else ""


def _others(conditions: Conditions | None) -> str:
    share = conditions.others if conditions else 0.0
    return f"other programs used {share:.0%} of the machine"


def taken_by_others(conditions: Conditions) -> str:
    """How much of how many cores others used."""
    cores = counted(conditions.cores, "core")
    return f"other programs used {conditions.others:.0%} of {cores}"


def mark(row: Row) -> str:
    """How the column's text compares, in two words; "" if there is nothing to compare it with."""
    judged = row.score.judged
    if judged and judged.verdict == "invalid":
        return "not valid"
    return "same so far" if _cut(row) else _MARKS[row.text]


def beside(row: Row, doubt: Doubt = "") -> str:
    """What stands beside the speed-up: tokens a second, and the seconds saved or lost, but in a
    noisy race.
    """
    parts = [f"{rate(row.rate)} tokens/s"] if row.rate else []
    same = not row.baseline and row.text != "different"
    if row.speedup.value and same and doubt != "noisy":
        parts.append(f"{duration(abs(row.saved))} {'saved' if row.saved > 0 else 'lost'}")
    return ", ".join(parts)


def comparison(board: Scoreboard, row: Row) -> str:
    """Whether the column wrote what its reference wrote, and where not; "" while unknown."""
    reference = board.reference(row.column)
    if row.message or reference is None or not row.score.steps:
        return ""
    name, base = board.name(reference), board.scores[reference]
    unit = "character" if board.by_text(row.column) else "token"
    if not row.text:
        return f"not compared with {name}: its tokens are others" if base.steps else ""
    if row.difference is None:
        return f"identical to {name} ({counted(board.compared(row.column), unit)})"
    gap = row.difference.gap
    apart = f" (scores {gap:.2g} apart)" if isfinite(gap) and row.text == "changed" else ""
    return f"differs from {name} at {unit} {row.difference.index + 1}{apart}{_rounding(row)}"


def _rounding(row: Row) -> str:
    """Why a column may differ from another one of its model; "" where it must not."""
    precision = row.score.spec.get("precision", "")
    declared = engines().get(row.score.spec.get("engine", ""))
    exact = declared is None or not declared.exact or precision in declared.exact
    return (
        "" if exact or row.text != "changed" else f": {precision} rounds differently in wide passes"
    )


def validity(score: Score) -> str:
    """What an independent validator says of a text that its JSON Schema let end; "" of others."""
    judged = score.judged
    if judged is None or judged.verdict == "valid":
        return "valid against its schema" if judged else ""
    what = "checked" if judged.verdict == "unchecked" else "valid"
    return f"not {what} against its schema: {judged.why}"


def outcome(board: Scoreboard, row: Row) -> str:
    """How a column's text compares, and whether it is valid, for a line below its name."""
    if row.message:
        return row.message
    more = f"the grammar still expects {row.score.expected}" if row.score.expected else ""
    return "; ".join(filter(None, (comparison(board, row), validity(row.score), more)))


def why(board: Scoreboard, row: Row) -> str:
    """Why a column is as fast as it is, in one sentence; "" while unknown and of the baseline."""
    score, decision = row.score, row.score.decision
    if row.baseline or row.message or not score.steps:
        return ""
    alone = (
        [_CLOCKS.get(score.clock, "ran alone")] if board.columns[row.column].strategy.alone else []
    )
    if row.verdict == "same work":
        declined = [*decision.declined, *([decision.why] if decision.plain else [])]
        return "; ".join([*declined[:1], "it did what KV reuse does", *alone])
    if score.fed:
        return f"it computed {counted(score.rows, 'token')} in {counted(score.steps, 'pass')}"
    if not (cost := pass_cost(row)):
        return "; ".join(alone)
    wrote, long = f"{score.tokens_per_forward:.2f} tokens per pass", f"{factor(cost)} the time"
    parts = [f"{wrote} \N{DIVISION SIGN} {long} = {factor(row.speedup.value)}"]
    if score.drafted:
        shares = by_position(score.positions)
        parts.append(f"{score.acceptance:.0%} of its guesses were accepted (by position {shares})")
    if score.forced:
        parts.append(f"its grammar forced {counted(score.forced, 'token')}")
    if not board.columns[row.column].strategy.keeps_cache:
        parts.append("each pass computes the whole text again")
    return "; ".join([*parts, *alone])


def reasons(board: Scoreboard, result: Result) -> list[str]:
    """Why the columns are as fast as they are, the fastest first."""
    ordered = sorted(result.rows, key=lambda row: -row.speedup.value)
    causes = [(row.name, row.message.removesuffix(".") or why(board, row)) for row in ordered]
    return [f"{name}: {cause}." for name, cause in causes if cause][:MOST_REASONS]


def state(row: Row) -> str:
    """What the column is doing, or how it ended."""
    score = row.score
    if row.state == "prefill":
        return f"reading {score.prefilled} of {counted(score.prompt_tokens, 'token')}"
    if row.state in ENDED:
        return score.reason or row.state
    return "writing" if row.state == "decoding" else "waiting"
