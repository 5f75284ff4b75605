"""A race as plain JSON for the page: every word and figure ready to be shown, nothing live.

Numbers that set the length of a bar are fractions; all else is text. Lists and strings only grow
while a race runs, so that what travels to the browser is what is new.
"""

import json
from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

import numpy as np

from backend.results.cost_curve import curve
from backend.results.headline import headline, pass_cost, rate_text
from backend.results.metrics import Score
from backend.results.reason import reason
from backend.results.scoreboard import Scoreboard
from backend.strategies.registry import BASELINE, Strategy, word

_NONE = "\N{EN DASH}"

View = dict[str, Any]


def view(
    board: Scoreboard,
    *,
    race: int,
    goal: int,
    ahead: int = 0,
    public: Callable[[str], str] = str,
) -> View:
    """The whole page. `race` numbers the races, `goal` is the most tokens a column may write,
    `ahead` the races that go first; `public` strips what visitors must not see from texts.
    """
    phase = "ended" if board.ended else _phase(board, ahead)
    longest = max((len(score.tokens) for score in board.scores), default=0)
    axis = longest if phase == "ended" and longest else goal
    return {
        "race": race,
        "phase": phase,
        "status": public(_status(board, phase, ahead)),
        "leader": headline(board) if phase == "racing" else "",
        "setup": public(_setup(board)),
        "axis": axis,
        "chart": _chart(board),
        "costs": curve(board) if phase == "ended" else None,
        "columns": [_column(board, i, axis, public) for i in range(len(board.columns))],
    }


def idle(columns: Sequence[Strategy]) -> View:
    """What the page shows before any race: the columns, and what each of them does."""
    shown = view(Scoreboard(columns), race=0, goal=0)
    return {**shown, "phase": "idle", "status": ""}


def alert(sentence: str) -> View:
    """A sentence above the board, which stays as it is."""
    return {"alert": sentence}


def _phase(board: Scoreboard, ahead: int) -> str:
    if ahead:
        return "waiting"
    started = any(score.state != "queued" for score in board.scores)
    return "preparing" if board.preparing or not started else "racing"


def _status(board: Scoreboard, phase: str, ahead: int) -> str:
    match phase:
        case "waiting":
            return f"{ahead} {'race' if ahead == 1 else 'races'} ahead of yours."
        case "preparing":
            return board.preparing or "Getting ready..."
        case "racing":
            return "Racing."
        case _:
            return headline(board)


def _setup(board: Scoreboard) -> str:
    """What runs where on how long a prompt, once known."""
    for score in board.scores:
        if score.model:
            return f"{score.model}, {score.prompt_tokens:,} prompt tokens"
    return ""


def _column(board: Scoreboard, index: int, axis: int, public: Callable[[str], str]) -> View:
    strategy, score = board.columns[index], board.scores[index]
    speedup = board.speedup(index)
    written = len(score.tokens)
    return {
        "title": strategy.title,
        "description": strategy.description,
        "setting": public(setting_text(strategy)),
        "baseline": strategy.name == BASELINE,
        "state": score.state,
        "status": _state(score),
        "prefill": score.prefilled / score.prompt_tokens if score.prompt_tokens else 0.0,
        "message": public(score.message),
        "spans": merged(score.spans),
        "written": f"{written} {'token' if written == 1 else 'tokens'}",
        "progress": min(1.0, written / axis) if axis else 0.0,
        "clock": seconds(score.seconds) if score.seconds else "",
        "speedup": round(speedup, 3),
        "speed": _factor(speedup),
        "why": _why(board, index),
        "same": _sameness(board, index),
        "verdict": board.verdict(index),
        "rate": round(_bar_length(score), 4),
        "amount": _amount(score, speedup),
        "figures": _figures(score),
        "parts": _parts(score),
        "values": json.dumps(score.values, ensure_ascii=False) if score.values else "",
        "remark": _remark(score),
    }


def _chart(board: Scoreboard) -> str:
    """What the bars of the result show."""
    if any(score.fed for score in board.scores):
        return "Whole program, speed; the line is KV reuse"
    return "Tokens a second; the line is KV reuse"


def _bar_length(score: Score) -> float:
    """The length of a column's bar: programs, or else tokens, a second."""
    if not score.fed:
        return score.tokens_per_second
    return 1 / score.seconds if score.state == "done" and score.seconds else 0.0


def _amount(score: Score, speedup: float) -> str:
    """What is written beside the bar; "" while there is nothing to say."""
    if not _bar_length(score):
        return ""
    told = seconds(score.seconds) if score.fed else rate_text(score.tokens_per_second)
    return f"{told} ({speedup:.2f}\N{MULTIPLICATION SIGN})" if speedup else told


def _state(score: Score) -> str:
    match score.state:
        case "prefill":
            return f"reading the prompt: {score.prefilled} of {score.prompt_tokens} tokens"
        case "done" if score.expected:
            return f"done: {score.reason}, incomplete"
        case "done":
            return f"done: {score.reason}"
        case state:
            return state


def setting_text(strategy: Strategy) -> str:
    """The column in the command line's words, say "lookahead:window=5,level=3"."""
    told = {name: value for name, value in strategy.settings().items() if value is not None}
    settings = ",".join(f"{name}={word(value)}" for name, value in told.items())
    return f"{strategy.name}:{settings}" if settings else strategy.name


def merged(spans: list[list[str]]) -> list[list[str]]:
    """Neighbours of one origin joined: fewer nodes, and the last one grows as text is added."""
    joined: list[list[str]] = []
    for origin, piece in spans:
        if joined and joined[-1][0] == origin:
            joined[-1][1] += piece
        else:
            joined.append([origin, piece])
    return joined


def _why(board: Scoreboard, index: int) -> str:
    """What made a column as fast as it is."""
    score = board.scores[index]
    if score.fed and pass_cost(board, index) and score is not board.baseline:
        return f"{score.steps} sampling passes, {score.rows:,} rows, {seconds(score.seconds)}"
    return reason(board, index)


def _sameness(board: Scoreboard, index: int) -> str:
    """One of "same", "differs", "grammar" (differs, as it should), or "" without a verdict."""
    if not board.verdict(index):
        return ""
    if board.difference(index) is None:
        return "same"
    return "grammar" if board.may_differ(index) else "differs"


def _figures(score: Score) -> list[list[str]]:
    """Label and value pairs, always the same labels in the same order."""
    many = score.tokens_per_second > 0
    return [
        ["TTFT", seconds(score.ttft) if score.tokens else _NONE],
        ["TPOT", seconds(score.tpot) if many else _NONE],
        ["tokens/s", rate_text(score.tokens_per_second) if many else _NONE],
        ["tokens/pass", f"{score.tokens_per_forward:.2f}" if many else _NONE],
        ["predicted", _factor(score.predicted)],
        ["accepted", f"{score.acceptance:.0%} of {score.drafted}" if score.drafted else _NONE],
        ["mask", _mask(score)],
        ["reused", _reused(score) or _NONE],
        ["rows", f"{score.rows:,}" if score.rows else _NONE],
    ]


def _factor(speedup: float) -> str:
    return f"{speedup:.2f}\N{MULTIPLICATION SIGN}" if speedup else _NONE


def _remark(score: Score) -> str:
    """What happened to the context, a part of it reused or dropped, and what a grammar cost."""
    told = _grammar(score)
    if score.expected:
        told += f"Incomplete: the grammar still expects {score.expected}. "
    if score.reused:
        told += f"{_reused(score)} tokens reused. "
    if score.shifts:
        first, gone = score.shifts[0], sum(shift.dropped for shift in score.shifts)
        told += (
            f"The context was full after {first.at} tokens: {gone} older tokens were dropped, and "
            f"from there on the text is no longer that of the whole context. Dropped last: "
            f"{shortened(score.shifts[-1].text)}"
        )
    return told.strip()


def _reused(score: Score) -> str:
    """How much of what there was at the start needed no computing; "" if all of it did."""
    there = score.prompt_tokens + score.earlier
    return f"{score.reused} of {there}" if score.reused else ""


def shortened(text: str, most: int = 120) -> str:
    """`text` in quotes, its middle left out if it is long."""
    half = most // 2
    return f'"{text}"' if len(text) <= most else f'"{text[:half]} [...] {text[-half:]}"'


def _mask(score: Score) -> str:
    return seconds(mean(score.masks)) if score.masks else _NONE


def _grammar(score: Score) -> str:
    """What the grammar's masks took, how much of it showed, and how many tokens it forced."""
    if not score.masks or not score.seconds:
        return ""
    p50, p99 = (seconds(float(value)) for value in np.percentile(score.masks, (50, 99)))
    return (
        f"Grammar: compiled in {seconds(score.compiled)}; {len(score.masks)} masks, "
        f"{seconds(mean(score.masks))} on average (p50 {p50}, p99 {p99}, longest "
        f"{seconds(max(score.masks))}), "
        f"{score.parts['mask'] / score.seconds:.1%} of the time not hidden behind the passes; "
        f"{score.forced} of {len(score.tokens)} tokens forced. "
    )


def _parts(score: Score) -> list[list[Any]]:
    """Where the own clock's time went: [part, share, text] each, shares adding up to 1."""
    if not score.steps or not score.seconds:
        return []
    # Time outside steps is that of whole chunks of the prompt, or of a text without a cache.
    prefill = max(0.0, score.seconds - sum(score.parts.values()))
    times = {"prefill": prefill, **score.parts}
    total = sum(times.values())
    return [[part, round(t / total, 4), seconds(t)] for part, t in times.items()]


def seconds(value: float) -> str:
    """A duration in the unit that suits it."""
    if value >= 1:
        return f"{value:.2f} s"
    if value >= 0.1:
        return f"{value * 1e3:.0f} ms"
    return f"{value * 1e3:.1f} ms" if value >= 0.001 else f"{value * 1e3:.2f} ms"
