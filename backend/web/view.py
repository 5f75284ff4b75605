"""A race as plain JSON for the page: every word and figure ready to be shown, nothing live.

Numbers that set the length of a bar are fractions; all else is text. Lists and strings only grow
while a race runs, so that what travels to the browser is what is new. The page decides nothing:
which column is faster, how it is said and which figures there are, is said here.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from backend.results import sentences
from backend.results.charts import cost_curve
from backend.results.figures import NONE, TIMES, duration, factor, figures, glossary, rate, span
from backend.results.metrics import Score
from backend.results.scoreboard import Sameness, Scoreboard
from backend.strategies.column import Column

View = dict[str, Any]

#: What stands before a verdict, so that its colour is not all that tells.
_MARKS: dict[Sameness, str] = {
    "same": "\N{CHECK MARK} ",
    "differs": "\N{NOT EQUAL TO} ",
    "allowed": "\N{HEAVY ASTERISK} ",
    "": "",
}


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
    longest = max((score.length for score in board.scores), default=0)
    axis = longest if phase == "ended" and longest else goal
    return {
        "race": race,
        "phase": phase,
        "status": public(_status(board, phase, ahead)),
        "leader": public(sentences.headline(board)) if phase == "racing" else "",
        "setup": public(_setup(board)),
        "figures": [[figure.title, figure.help] for figure in figures("card")],
        "columns": [_column(board, i, axis, public) for i in range(len(board.columns))],
        "ledger": public(sentences.ledger(board)) if phase == "ended" else "",
        "spoiled": phase == "ended" and sentences.spoiled(board),
        "result": _result(board, public) if phase == "ended" else None,
        "costs": _costs(board, public) if phase == "ended" else None,
    }


def idle(columns: Sequence[Column]) -> View:
    """What the page shows before any race: the columns, what each of them does, and what the
    figures will mean.
    """
    shown = view(Scoreboard(columns), race=0, goal=0)
    terms = [*sentences.TERMS.items(), *((title, text) for title, _, text in glossary())]
    return {**shown, "phase": "idle", "status": "", "glossary": [list(term) for term in terms]}


def alert(sentence: str) -> View:
    """A sentence above the board, which stays as it is."""
    return {"alert": sentence}


def preparing(sentence: str) -> View:
    """What is still being prepared before there can be a race; "": nothing."""
    return {"preparing": sentence}


def gone(sentence: str) -> View:
    """A race that the page still shows as running is not there any more: the sentence says why."""
    return {"gone": sentence}


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
            return sentences.headline(board)


def _setup(board: Scoreboard) -> str:
    """What runs where on how long a prompt, each target once, as far as they are known."""
    targets = {
        score.model: f", {score.prompt_tokens:,} prompt tokens" if score.prompt_tokens else ""
        for score in (board.baseline, *board.scores)
        if score.model
    }
    return "; ".join(f"{model}{prompt}" for model, prompt in targets.items())


def _column(board: Scoreboard, index: int, axis: int, public: Callable[[str], str]) -> View:
    """A column's card and its lane of the race."""
    column, score = board.columns[index], board.scores[index]
    same = board.sameness(index)
    parts = _parts(score)
    return {
        "title": public(board.name(index)),
        "description": column.strategy.description,
        "setting": public(str(column)),
        "state": score.state,
        "status": sentences.state(score),
        "prefill": score.prefilled / score.prompt_tokens if score.prompt_tokens else 0.0,
        "message": public(score.message),
        "spans": merged(score.spans),
        "progress": min(1.0, score.length / axis) if axis else 0.0,
        "progress_text": sentences.progress(score),
        "pace": board.pace(index),
        "speed": _speed(board, index),
        "interval": span(board.gain(index)).strip(),
        "pace_text": public(sentences.pace(board, index)),
        "reason": public(sentences.reason(board, index)),
        "same": same,
        "verdict": _MARKS[same] + public(sentences.verdict(board, index)),
        "figures": [figure.text(score, board.baseline) for figure in figures("card")],
        "parts": [[part, round(share, 4), f"{part} {time}"] for part, share, time in parts],
        "shares": [[part, f"{part} {share:.0%}"] for part, share, _ in parts if share >= 0.01],
        "values": json.dumps(score.values, ensure_ascii=False) if score.values else "",
        "remark": public(sentences.remark(score)),
    }


def _speed(board: Scoreboard, index: int) -> str:
    """The speed-up as a card writes it."""
    if index == board.baseline_index:
        return f"1{TIMES}"
    speedup = board.speedup(index)
    return factor(speedup) if speedup else NONE


def _result(board: Scoreboard, public: Callable[[str], str]) -> View:
    """The bars and the table of a race that has ended."""
    columns = range(len(board.columns))
    lengths = [_bar_length(board, i) for i in columns]
    base, longest = board.baseline_index, max(lengths, default=0.0)
    shares = [length / longest if longest else 0.0 for length in lengths]
    entries = figures("table")
    return {
        "caption": public(sentences.bars_caption(board)),
        "line": shares[base] if base is not None else 0.0,
        "bars": [
            [public(board.name(i)), round(shares[i], 4), board.pace(i), _bar_text(board, i)]
            for i in columns
        ],
        "headings": [
            ["Column", ""],
            *([figure.title, figure.help] for figure in entries),
            ["text", "Whether the column wrote what it should have."],
        ],
        "lines": [
            [
                public(board.name(i)),
                *(figure.text(board.scores[i], board.baseline) for figure in entries),
                public(_outcome(board, i)),
            ]
            for i in columns
        ],
    }


def _bar_length(board: Scoreboard, index: int) -> float:
    """The length of a column's bar: programs a second, or else its speed-up, or without a baseline
    its tokens a second.
    """
    score = board.scores[index]
    if score.fed:
        return 1 / score.seconds if score.state == "done" and score.seconds else 0.0
    return board.speedup(index) if board.baseline.tpot else score.tokens_per_second


def _bar_text(board: Scoreboard, index: int) -> str:
    """What is written beside the bar."""
    score, speedup = board.scores[index], board.speedup(index)
    if score.fed:
        done = score.state == "done" and score.seconds
        amount = duration(score.seconds) if done else NONE
    else:
        amount = rate(score.tokens_per_second) if score.tokens_per_second else NONE
    return f"{amount}, {factor(speedup)}{span(board.gain(index))}" if speedup else amount


def _outcome(board: Scoreboard, index: int) -> str:
    if board.scores[index].message:
        return "failed"
    said = sentences.verdict(board, index)
    if index == board.baseline_index:
        return f"the baseline; {said}" if said else "the baseline"
    return said or NONE


def _costs(board: Scoreboard, public: Callable[[str], str]) -> View | None:
    curve = cost_curve(board)
    if curve is None:
        return None
    return {**curve, "marks": [{**m, "name": public(m["name"])} for m in curve["marks"]]}


def merged(spans: list[list[str]]) -> list[list[str]]:
    """Neighbours of one origin joined: fewer nodes, and the last one grows as text is added."""
    joined: list[list[str]] = []
    for origin, piece in spans:
        if joined and joined[-1][0] == origin:
            joined[-1][1] += piece
        else:
            joined.append([origin, piece])
    return joined


def _parts(score: Score) -> list[tuple[str, float, str]]:
    """Where the own clock's time went: part, share and time of each, shares adding up to 1."""
    if not score.parts or not score.seconds:
        return []
    # Time outside steps is that of whole chunks of the prompt, or of a text without a cache.
    prefill = max(0.0, score.seconds - sum(score.parts.values()))
    times = {"prefill": prefill, **score.parts}
    total = sum(times.values())
    return [(part, t / total, duration(t)) for part, t in times.items()]
