"""A result in words: every sentence about a race is made here. Those about a benchmark are made in
`backend/bench/summary.py`.
"""

from math import isfinite

from backend.engines.registry import engines
from backend.results.figures import by_position, counted, factor, likely, listed, rate
from backend.results.intervals import LEAST, PASSES, SHORTEST
from backend.results.result import BUSY, LEAST_TOKENS, NOISY, Result, Row
from backend.results.scoreboard import ENDED, Score, Scoreboard
from backend.strategies.libraries import SERVER

_MARKS = {
    "same": "same text",
    "so far": "same so far",
    "changed": "text changed",
    "different": "different text",
    "": "",
}
#: Of a race in which no ratio, or none with an interval, is known.
_TOO_SHORT = (
    f"It was too short to compare speeds: that takes {LEAST_TOKENS} tokens, "
    f"{LEAST * SHORTEST:.2g} s and {LEAST * PASSES} passes of each column."
)

_JUDGED = {"invalid": "valid", "unchecked": "checked"}

#: Which clock times a column that a server writes.
_CLOCKS = {"server": "timed by the server", "network": "timed over the network"}


def headline(board: Scoreboard, result: Result) -> str:
    """What failed, who won, by how much, and which texts are the same; before the end, what
    happens.
    """
    rows, messages = result.rows, {row.message for row in result.rows}
    if all(row.state == "failed" for row in rows):
        return messages.pop() if len(messages) == 1 else "No column finished."
    if not board.ended:
        turns = any(not column.strategy.alone for column in board.columns)
        alone = "Columns run one after another, more than once; texts are those of the first run."
        return "Columns take turns; each is timed only while it computes." if turns else alone
    failed = [row.name for row in rows if row.state == "failed"]
    failures = f"{listed(failed)} failed." if failed else ""
    early = "Stopped early." if any(row.state == "stopped" for row in rows) else ""
    speed = _speed(board, result) if result.final or result.doubt == "noisy" else ""
    return " ".join(filter(None, (failures, early, speed, _texts(result))))


def _speed(board: Scoreboard, result: Result) -> str:
    base, verdicts = result.baseline, {row.verdict for row in result.rows}
    if result.doubt == "noisy":
        return noise(board.others)
    if base is None or verdicts <= {"baseline", ""}:
        best = max(result.rows, key=lambda row: row.rate)
        wrote = f"{best.name} wrote {beside(best)}"
        missing = "" if base else "; no plain column ran, so there are no speed-ups"
        if [column.name for column in board.columns] == [SERVER.name]:
            missing = "; to compare, add a second server (@http://...)"
        return f"{wrote}{missing}." if best.rate else ""
    if result.leaders:
        best = [result.rows[index] for index in result.leaders]
        names, much = listed([row.name for row in best]), [likely(row.speedup) for row in best]
        verb = "wins" if len(best) == 1 else "share the lead"
        return f"{names} {verb}: {listed(much)} as fast as {base.name}."
    if "short" in verdicts and not verdicts & {"faster", "slower", "unclear"}:
        return _TOO_SHORT
    return none_faster(base.name)


def none_faster(baseline: str) -> str:
    """What a race, or a benchmark, comes to in which nothing pays off."""
    return f"No column with the same text was measurably faster than {baseline}."


def _texts(result: Result) -> str:
    """How many texts were written, and by whom."""
    if changed := [row.name for row in result.rows if row.text == "changed"]:
        return f"The text changed in {listed(changed)}."
    classes: dict[int, list[str]] = {}
    for row in result.rows:
        if row.comparison.like is not None:
            classes.setdefault(row.comparison.like, []).append(row.name)
    cut = any(row.text == "so far" for row in result.rows)
    identical = f"identical{', as far as each was written' if cut else ''}."
    if len(classes) == 1 and result.texts:
        return f"All texts are {identical}"
    own = [row.name for row in result.rows if row.text == "different"]
    others = [name for names in classes.values() for name in names if names != own]
    if len(classes) == 2 and own in classes.values():
        writes = f"{listed(own)} {'write' if len(own) > 1 else 'writes'} another text, by design"
        return f"{writes}; the others are {identical}" if len(others) > 1 else f"{writes}."
    groups = "; ".join(listed(names) for names in classes.values())
    return f"{len(classes)} different texts: {groups}." if len(classes) > 1 else ""


def doubt(board: Scoreboard, result: Result) -> str:
    """Why the speeds may be off; "" if they are not, or the headline says it."""
    return noise(board.others) if result.doubt == "busy" else ""


def noise(others: float) -> str:
    """What it means that others used this share of the machine; "": nothing."""
    used = f"other programs used {others:.0%} of the machine"
    if others > NOISY:
        return f"Too noisy to tell: {used}."
    return f"Speeds may be off: {used}." if others > BUSY else ""


def mark(board: Scoreboard, row: Row) -> str:
    """How the column's text compares; "" if there is nothing to compare it with."""
    judged = row.score.judged
    if judged and judged.verdict != "valid":
        return f"not {_JUDGED[judged.verdict]}"
    if row.text in ("same", "so far"):
        return f"{_MARKS[row.text]} as {board.names[row.comparison.like or 0]}"
    return _MARKS[row.text]


def beside(row: Row) -> str:
    """What stands beside the speed-up: units a second, and the baseline's by the same reading of
    its clock; "" while there are none.
    """
    base = f" against {rate(row.baseline_rate)}" if row.baseline_rate and not row.baseline else ""
    return f"{rate(row.rate)}{base} {row.unit}s/s" if row.rate else ""


def comparison(board: Scoreboard, row: Row) -> str:
    """Which column's text it wrote, or where it departs from that; "" while unknown."""
    text = row.comparison
    if row.message or text.other is None or text.comparison is None:
        return ""
    name, compared = board.names[text.other], text.comparison
    if not compared.parted:
        far = "identical to" if compared.whole else "so far identical to"
        return f"{far} {name} ({counted(compared.agreed, compared.unit)})"
    known = isfinite(compared.gap) and row.text == "changed"
    apart = f" (scores {compared.gap:.2g} apart)" if known else ""
    place = f"{compared.unit} {compared.agreed + 1}"
    return f"differs from {name} at {place}{apart}{_rounding(board, row)}"


def _rounding(board: Scoreboard, row: Row) -> str:
    """Why a column may differ from another one of its model; "" where it must not."""
    engine, precision = (row.score.started.spec.get(part, "") for part in ("engine", "precision"))
    library = board.columns[row.column].strategy.library
    declared = library.declaration if library else engines().get(engine)
    exact = declared is None or declared.demo or precision in declared.exact
    return (
        "" if exact or row.text != "changed" else f": {precision} rounds differently in wide passes"
    )


def validity(score: Score) -> str:
    """What an independent validator says of a text that its JSON Schema let end; "" of others."""
    judged = score.judged
    if judged is None or judged.verdict == "valid":
        return "valid against its schema" if judged else ""
    return f"not {_JUDGED[judged.verdict]} against its schema: {judged.why}"


def outcome(board: Scoreboard, row: Row) -> str:
    """How a column's text compares, and whether it is valid, for a line below its name."""
    if row.message:
        return row.message
    more = f"the grammar still expects {row.score.expected}" if row.score.expected else ""
    return "; ".join(filter(None, (comparison(board, row), validity(row.score), more)))


def why(board: Scoreboard, row: Row) -> str:
    """Why a column is as fast as it is, and what the baseline reads or ends otherwise, in one
    sentence; "" while unknown.
    """
    score, base = row.score, board.baseline
    if row.message or not score.steps:
        return ""
    notes = [n for n in score.started.notes if row.baseline or n not in base.started.notes]
    if 0 < score.prompt_tokens != base.prompt_tokens > 0:
        read = counted(score.prompt_tokens, "prompt token")
        other = board.names[board.baseline_index or 0]
        notes.append(f"it read {read}, {other} {base.prompt_tokens}")
    return "; ".join(filter(None, (_cause(board, row), *notes)))


def _cause(board: Scoreboard, row: Row) -> str:
    """Why a column is as fast as it is; "" while unknown, and of the baseline."""
    score, decision = row.score, row.score.decision
    if row.baseline:
        return ""
    alone = [_alone(row)] if board.columns[row.column].strategy.alone else []
    if row.state in ENDED and score.steps == 1 < score.length:
        return "; ".join(["its whole text came at its end", *alone])
    if row.verdict == "same work":
        declined = [*decision.declined, *([decision.why] if decision.plain else [])]
        return "; ".join(
            [*declined[:1], f"it did what {board.names[board.baseline_index or 0]} does", *alone]
        )
    if score.fed:
        rows, steps = counted(row.until.rows, "token"), counted(row.until.steps, "pass")
        return f"it computed {rows} in {steps}"
    if not row.pass_time:
        return "; ".join(alone)
    wrote = f"{factor(row.speedup.value * row.pass_time)} the tokens per pass"
    long = f"{factor(row.pass_time)} the time"
    parts = [f"{wrote} \N{DIVISION SIGN} {long} = {factor(row.speedup.value)}"]
    if row.until.drafted:
        shares, accepted = by_position(row.until.positions), row.until.acceptance
        parts.append(f"{accepted:.0%} of its guesses were accepted (by position {shares})")
    if row.until.forced:
        parts.append(f"its grammar forced {counted(row.until.forced, 'token')}")
    if not board.columns[row.column].strategy.keeps_cache:
        parts.append("each pass computes the whole text again")
    return "; ".join([*parts, *decision.declined, *alone])


def _alone(row: Row) -> str:
    """How a column that does not take turns was timed."""
    score, runs = row.score, counted(1 + len(row.score.repeats), "run")
    timed = f"{_CLOCKS.get(score.clock, 'timed')} in {runs} while the others waited"
    return timed if row.speedup.known else f"{timed}, so its speed-up has no interval"


def reasons(board: Scoreboard, result: Result) -> list[str]:
    """Why the columns are as fast as they are, the fastest first."""
    ordered = sorted(result.rows, key=lambda row: -row.speedup.value)
    causes = [(row.name, row.message.removesuffix(".") or why(board, row)) for row in ordered]
    return [f"{name}: {cause}." for name, cause in causes if cause]


def state(row: Row) -> str:
    """What the column is doing, or how it ended."""
    score = row.score
    if row.state == "prefill":
        return f"reading {score.prefilled} of {counted(score.prompt_tokens, 'token')}"
    if row.state in ENDED:
        return "cut at finish" if score.reason == "photo finish" else score.reason or row.state
    return "writing" if row.state == "decoding" else "waiting"
