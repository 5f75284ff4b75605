"""A race as plain JSON for the page, with every word and figure ready to be shown.

Numbers are shares, positions on the track or readings of a clock; all else is text. Lists and
strings only grow while a race runs, so only what is new travels to the browser. The page decides
nothing: which column is faster, how it is said, and which figures are shown is decided here.
"""

import json
import time
from collections.abc import Callable, Sequence
from math import log
from typing import Any
from weakref import WeakKeyDictionary

from backend.export.cost_curve import draw_costs
from backend.models.files import model_title
from backend.records.record import RaceRecord
from backend.records.record import board as board_of
from backend.results import sentences
from backend.results.charts import cost_curve
from backend.results.figures import (
    NONE,
    TIMES,
    Figure,
    as_long,
    by_position,
    counted,
    duration,
    factor,
    figure,
    figures,
    glossary,
    leading,
    likely,
    ordinal,
)
from backend.results.metrics import PART_NAMES, Moment, Score
from backend.results.scoreboard import ENDED, Sameness, Scoreboard
from backend.results.track import (
    BY_DESIGN,
    Standing,
    answers_otherwise,
    beginning,
    early,
    goal_of,
    length_at,
    photo_finish,
    position,
    ranks,
    settles,
    speed_of,
    standing,
    standings,
    taking_turns,
    unit_of,
    with_prompt,
)
from backend.strategies.column import Column

View = dict[str, Any]

#: What stands before a word on a text, so that its colour is not all that tells.
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
    before: Sequence[Sequence[float]] = (),
    public: Callable[[str], str] = str,
) -> View:
    """The whole page. `race` is the race's number, `goal` the place where the finish is expected
    (`goal_of`), `ahead` the number of races that go first, and `before` the speed-ups of the
    columns when the same race was run before. `public` removes from texts what visitors must not
    see.
    """
    phase = "ended" if board.ended else _phase(board, ahead)
    ended, finish = phase == "ended", photo_finish(board)
    now = standing(board)
    status = _status(board, phase, ahead)
    if ended:
        top, told = sentences.headlines(board)
        rest = " ".join(filter(None, (told, sentences.frozen(board))))
    else:
        top = _lead(board, status) if phase == "racing" else status
        rest = _aside(board, goal, top, status)
    places = _places(board, now)
    return {
        "race": race,
        "phase": phase,
        "status": public(status),
        "top": public(top),
        "rest": public(rest),
        "still": "" if ended else public(sentences.still(board, ahead)),
        "setup": public(_setup(board)),
        "track": _track(board, goal, finish, now, public),
        "story": _story(board, public) if ended else [],
        "columns": [
            _column(board, i, finish, places, before, public) for i in range(len(board.columns))
        ],
        "doubt": public(sentences.doubt(board)) if ended else "",
        "result": _result(board, public) if ended else None,
        "costs": _costs(board, public) if ended else None,
    }


def idle(columns: Sequence[Column], about: str = "", goal: int = 0) -> View:
    """What the page shows before any race: the columns, what each of them does, `about` what they
    show together, and what the figures will mean. `goal` is the place of the flag; 0: where it was.
    """
    shown = view(Scoreboard(columns), race=0, goal=goal)
    return {**shown, "phase": "idle", "status": about, "top": about, "glossary": _glossary()}


def recorded_view(record: RaceRecord, public: Callable[[str], str] = str) -> View:
    """A race that was recorded elsewhere or earlier. Its number is made from the current time, so
    the page shows it in place of any earlier race.
    """
    number, goal = time.time_ns() // 1_000_000, goal_of(record.request)
    shown = view(board_of(record), race=number, goal=goal, public=public)
    return {**shown, **_recorded(record, public)}


def opening_view(record: RaceRecord) -> View:
    """The recorded race that a page just opened plays until there is another one: number 0."""
    made = board_of(record)
    shown = view(made, race=0, goal=goal_of(record.request))
    spare = {"details": None, "line": "", "sentence": ""}  # what an opened page does not show
    columns = [{**column, **spare} for column in shown["columns"]]
    later = {
        "columns": columns,
        "rest": sentences.headlines(made)[1],
        "doubt": "",
        "glossary": _glossary(),
    }
    return {**shown, **later, **_recorded(record, str), "phase": "opening"}


def _recorded(record: RaceRecord, public: Callable[[str], str]) -> View:
    """Where and when a race was recorded, in few words; `place` says it in full."""
    where = record.machine.processor or record.machine.system
    told = f"Recorded on {where}, {record.made[:10]}."
    return {"recorded": public(told), "place": public(record.place)}


def _glossary() -> list[list[str]]:
    terms = [*sentences.TERMS.items(), *((title, text) for title, _, text in glossary())]
    return [list(term) for term in terms]


def alert(sentence: str) -> View:
    """A sentence above the board, which stays as it is."""
    return {"alert": sentence}


def begun(number: int) -> View:
    """Says that something has begun, which the visitor's stream shows. Each has a number of its
    own.
    """
    return {"begun": number}


def preparing(sentence: str) -> View:
    """What is still being prepared before there can be a race; "": nothing."""
    return {"preparing": sentence}


def _phase(board: Scoreboard, ahead: int) -> str:
    if ahead:
        return "waiting"
    started = any(score.state != "queued" for score in board.scores)
    return "racing" if started else "preparing"


def _status(board: Scoreboard, phase: str, ahead: int) -> str:
    match phase:
        case "waiting":
            return sentences.waiting(ahead)
        case "preparing":
            return board.preparing or "Getting ready..."
        case "racing":
            usual = sentences.TURNS if taking_turns(board) else sentences.ALONE
            return board.preparing or sentences.live(board) or usual
        case _:
            return sentences.headline(board)


def _lead(board: Scoreboard, status: str) -> str:
    """What is said at the top while a race runs."""
    return sentences.lead(board) or (not board.preparing and sentences.reading(board)) or status


def _aside(board: Scoreboard, goal: int, top: str, status: str) -> str:
    """What is said below the line `top` of a race that has not ended."""
    if top == status:
        told = ""
    elif photo_finish(board):
        told = sentences.writing(board)
    else:
        told = status
    left = sentences.time_left(board, goal) if any(s.length for s in board.scores) else ""
    return " \N{MIDDLE DOT} ".join(filter(None, (told, left)))


def _story(board: Scoreboard, public: Callable[[str], str]) -> list[list[Any]]:
    """How the race stood, for its replay: from which ms of the lanes' clocks on what is said. By
    how much one leads is seen there, and left open here ("... by").
    """
    told: list[list[Any]] = []
    for now in standings(board):
        said = public(sentences.stands(board, now))
        if not told or told[-1][1] != said:
            told.append([round(1e3 * now.seconds, 1), said])
    return told


def _setup(board: Scoreboard) -> str:
    """Which model runs where, on a prompt of how many tokens: each target once, as far as this is
    known.
    """
    targets = {
        _target(score): f", {score.prompt_tokens:,} prompt tokens" if score.prompt_tokens else ""
        for score in (board.baseline, *board.scores)
        if score.model
    }
    told = [f"{target}{prompt}" for target, prompt in targets.items()]
    return "; ".join(told)


def _target(score: Score) -> str:
    """Where a column runs, with the model's short name."""
    name = score.spec.get("name", "")
    return score.model.replace(name, model_title(name), 1) if name else score.model


def _track(
    board: Scoreboard,
    goal: int,
    finish: Standing | None,
    now: Standing | None,
    public: Callable[[str], str],
) -> View:
    """The scale that all lanes share, in tokens or characters. The flag stands at `goal` until the
    first lane has finished, then at the end of that lane. `finish` is how many ms of its own clock
    that lane took; `now` is when the lanes are drawn: all of them have come so far, and None: each
    is drawn as far as it is. `about` says that speeds are without the prompt, where lanes begin
    with it; `speeds` and `axis` say what the bars are from the photo finish on. In a `noisy` race,
    speeds and places are drawn pale.
    """
    unit = unit_of(board)
    longest = max((position(board, i) for i in range(len(board.scores))), default=0)
    flag = finish.length if finish else max(goal, longest)
    # Of a program the fixed text alone is known, of others the most tokens.
    bound = "over " if unit == "character" else "up to "
    bound = "" if finish or board.ended else bound
    return {
        "unit": unit,
        "flag": flag,
        "end": f"{bound}{counted(flag, unit)}",
        "about": "speed after the prompt" if unit == "token" and with_prompt(board) else "",
        "speeds": _speeds(board, finish),
        "axis": public(_axis(board, finish)),
        "finish": round(1e3 * finish.seconds, 1) if finish else None,
        "now": round(1e3 * now.seconds, 1) if now else 0 if taking_turns(board) else None,
        "noisy": board.noisy,
    }


def _speeds(board: Scoreboard, finish: Standing | None) -> float | None:
    """Of lanes that are as long as their speed-ups: that of the lane that ends at the flag."""
    if finish is None or not settles(board, finish):
        return None
    return speed_of(board, finish.column)


def _axis(board: Scoreboard, finish: Standing | None) -> str:
    """What bars are from the photo finish on."""
    if finish is None:
        return ""
    unit = unit_of(board)
    if settles(board, finish):
        return "Speed after the prompt" if unit == "token" else "Speed"
    return f"{unit.capitalize()}s at {board.name(finish.column)}'s finish"


def _column(
    board: Scoreboard,
    index: int,
    finish: Standing | None,
    places: dict[int, str],
    before: Sequence[Sequence[float]],
    public: Callable[[str], str],
) -> View:
    """A column's lane and card. `rounds` are what it showed and when, see
    `_Rounds`.
    """
    column, score = board.columns[index], board.scores[index]
    known, (speed, _) = board.baseline_index is not None, leading(score)
    told = _speed(board, index) if known else speed.text(score, board.baseline)
    otherwise, pace = answers_otherwise(board, index), public(sentences.pace(board, index))
    hidden = early(board) or _unsure(board, index)
    plain = hidden and index == board.baseline_index
    compared = "" if plain else pace if known else speed.unit.name
    return {
        "title": public(board.name(index)),
        "gist": public(column.gist),
        "lane": public(_lane(board, index)),
        "read": _read(score),
        "place": places.get(index, ""),
        "settled": length_at(board, index, finish) if settles(board, finish) else None,
        "description": column.strategy.description,
        "setting": public(str(column)),
        "state": score.state,
        "status": _state(board, index),
        "message": public(score.message),
        "rounds": _rounds_of(board)[index].text(score, beginning(board, index)),
        "pace": "other" if otherwise else board.pace(index),
        "speed": "" if hidden else told,
        "pace_text": "different text" if otherwise else compared,
        "same": board.sameness(index) if board.ended else "",
        "line": _line_of(board, index, [speedups[index] for speedups in before]),
        "sentence": public(sentences.brief(board, index)) if board.ended else "",
        "values": json.dumps(score.values, ensure_ascii=False) if score.values else "",
        "details": _details(board, index, public) if board.ended else None,
    }


def _read(score: Score) -> float:
    """The share of the prompt that a column has read, while it reads; else 0."""
    reading = score.state == "prefill" and score.prompt_tokens
    return round(score.prefilled / score.prompt_tokens, 3) if reading else 0.0


def _unsure(board: Scoreboard, index: int) -> bool:
    """True while a speed-up, which will have an interval, has none yet; of the baseline, while
    nothing is compared with it.
    """
    score = board.scores[index]
    if board.baseline_index is None or board.ended:
        return False
    if index == board.baseline_index:
        return not any(board.gain(i).known for i in range(len(board.scores)))
    timed = score.clock == board.baseline.clock and not score.fed
    return timed and score.state not in ENDED and not board.gain(index).known


def _places(board: Scoreboard, now: Standing | None) -> dict[int, str]:
    """The place of each lane that has one."""
    if now is None or early(board):
        return {}
    found = ranks(board, now)
    return {i: ordinal(at, shared=shared) for i, (at, shared) in found.items()}


def _state(board: Scoreboard, index: int) -> str:
    """What a column is doing; once all have ended, what became of its text."""
    score, same = board.scores[index], board.sameness(index)
    if not board.ended or score.state != "done" or score.expected:
        return sentences.state(score)
    kept = sentences.kept(board, index)
    return f"{_MARKS[same]}{kept}"


def _lane(board: Scoreboard, index: int) -> str:
    """What a lane says of a column that does not simply move on; "" of others."""
    score = board.scores[index]
    if score.reason == BY_DESIGN:
        return f"stops at {counted(score.length, 'token')}"
    if answers_otherwise(board, index):
        return "different text: not ranked"
    if score.state in ("queued", "decoding", "done"):
        untold = score.steps and not (score.times or score.fed)
        return "its server sends no token counts" if untold else ""
    return sentences.state(score)


def _whole(board: Scoreboard, index: int) -> str:
    """The speed-up of the whole answer, the prompt included, a clause; "" where it is that after
    the prompt.
    """
    entry, speedup = figure("whole"), board.speedup(index)
    value = entry.value(board.scores[index], board.baseline)
    other = value and speedup and abs(log(value / speedup)) >= log(sentences.ALIKE)
    return f"with the prompt, the speed-up is {factor(value)}" if value and other else ""


def _line_of(board: Scoreboard, index: int, before: Sequence[float]) -> str:
    """What a card says of the figure in its lane: its interval, what it was `before`, and what it
    comes from.
    """
    score, gain = board.scores[index], board.gain(index)
    # What others are compared with has no cause to tell, but a speed; of a column that has ended,
    # its sentence tells the cause.
    plain = index == board.baseline_index and not score.fed
    _, cause = leading(score)
    shown = [figure("ttft"), figure("rate") if plain else cause]
    shown = [] if board.ended and not plain and sentences.brief(board, index) else shown
    there = [f for f in shown if f.value(score, board.baseline) is not None]
    told = [f"{f.title} {f.text(score, board.baseline)}" for f in dict.fromkeys(there)]
    known = gain.known and not board.noisy
    equation = sentences.as_sentence(sentences.equation(board, index)).removesuffix(".")
    equated = board.ended and equation and sentences.brief(board, index).startswith(equation)
    interval = [likely(gain)] if known and not equated else []
    earlier = (
        [f"earlier {', '.join(map(factor, before))}"] if before and board.ended and known else []
    )
    parts = [*interval, *earlier, *told]
    return sentences.as_sentence("; ".join(parts)) if parts else ""


def _details(board: Scoreboard, index: int, public: Callable[[str], str]) -> View:
    """What the details of a finished column say, and where its time went."""
    score = board.scores[index]
    told = (
        sentences.verdict(board, index),
        sentences.aside(board, index),
        _whole(board, index),
        sentences.likely_within(board, index),
        sentences.doubts(board, index),
        sentences.ending(score),
        sentences.remark(score),
    )
    parts, brief = _parts(score), sentences.brief(board, index)
    sentences_told = (sentences.as_sentence(text) for text in told if text)
    return {
        "told": [public(text) for text in sentences_told if text != brief],
        "parts": [
            [part, round(share, 4), f"{PART_NAMES[part]} {time}"] for part, share, time in parts
        ],
        "shares": [[part, f"{PART_NAMES[part]} {share:.0%}"] for part, share, _ in parts],
    }


def _speed(board: Scoreboard, index: int) -> str:
    """The one figure of a lane: the speed-up, of a program the time."""
    score = board.scores[index]
    if score.fed:
        return duration(score.seconds) if score.state in ENDED else ""
    if index == board.baseline_index:
        return f"1{TIMES}"
    speedup = board.speedup(index)
    return factor(speedup) if speedup else NONE


def _result(board: Scoreboard, public: Callable[[str], str]) -> View:
    """The table of a race that has ended, a line for each figure that is known of any column, and
    what else the machine did. Speed is told once: beside a speed-up, which is of the time in which
    both ran, rates of whole texts would seem to contradict it.
    """
    told_by_speedup = ("tpot", "rate") if board.baseline.tpot else ()
    positions = [by_position(score.positions) or NONE for score in board.scores]
    lines = [
        [figure.title, *(_cell(board, figure, score) for score in board.scores)]
        for figure in figures("page")
        if figure.name not in told_by_speedup
    ]
    lines.append(["accepted by position", *positions])
    kept = [
        _state(board, i) or ("baseline" if i == board.baseline_index else NONE)
        for i in range(len(board.columns))
    ]
    return {
        "headings": ["", *(public(board.name(i)) for i in range(len(board.columns)))],
        "lines": [["text", *kept], *(line for line in lines if set(line[1:]) != {NONE})],
        "reasons": list(map(public, sentences.reasons(board))),
        "ledger": public(sentences.ledger(board)),
    }


def _cell(board: Scoreboard, entry: Figure, score: Score) -> str:
    """A figure of a column. Of a noisy race no speed-up has an interval, and of a program it is
    told as in the lane.
    """
    value = entry.value(score, board.baseline) if entry.name == "speedup" else None
    if value and score.fed:
        return as_long(value)
    return entry.unit.text(value) if value and board.noisy else entry.text(score, board.baseline)


def _costs(board: Scoreboard, public: Callable[[str], str]) -> View | None:
    costs = cost_curve(board)
    if costs is None:
        return None
    return _chart(costs, draw_costs, public) | {"cells": costs["cells"], "note": costs["note"]}


def _chart(chart: View, drawn: Callable[[View], str], public: Callable[[str], str]) -> View:
    """A chart as it is drawn, and its marks in words, each with its pace where it has one."""
    marks = [{**mark, "name": public(mark["name"])} for mark in chart["marks"]]
    return {
        "svg": drawn({**chart, "marks": marks}),
        "marks": [[mark["name"], mark["sentence"], mark.get("pace", "")] for mark in marks],
    }


#: Pieces of text that a moment may show beside those of its tokens.
FEW = 16


class _Rounds:
    """What a column showed, as text that only grows: of each moment a line of JSON with the ms of
    the column's own clock since its lane began, the tokens that it committed, the rows computed,
    the ms that it took, and [origin, text] pairs.

    A text, for gradio copies and compares all that a view holds, in the browser too, each time that
    it changes: with lists in lists that took a third of a core at 400 tokens.
    """

    def __init__(self) -> None:
        self._count, self._text = 0, ""

    def text(self, score: Score, begun: float) -> str:
        """All of it so far, of a lane that began at that reading of the clock."""
        new = score.moments[self._count :]
        self._count += len(new)
        self._text += "".join(_line(moment, begun) for moment in new)
        return self._text


def _line(moment: Moment, begun: float) -> str:
    """A recording may hold thousands of pieces in a moment: those beyond what its tokens can have
    come to are one piece, because each of them costs a browser some 60 us.
    """
    clock, tokens, rows, seconds, spans, *_ = moment
    few = tokens + FEW
    if len(spans) > few:
        origin, _ = spans[few - 1]
        spans = [*spans[: few - 1], [origin, "".join(text for _, text in spans[few - 1 :])]]
    values = [round(1e3 * max(0.0, clock - begun), 1), tokens, rows, round(1e3 * seconds, 1), spans]
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")) + "\n"


#: What was written of boards that are still looked at: moments never change.
_ROUNDS: WeakKeyDictionary[Scoreboard, list[_Rounds]] = WeakKeyDictionary()


def _rounds_of(board: Scoreboard) -> list[_Rounds]:
    """Those of each column."""
    if board not in _ROUNDS:
        _ROUNDS[board] = [_Rounds() for _ in board.columns]
    return _ROUNDS[board]


def _parts(score: Score) -> list[tuple[str, float, str]]:
    """Where the own clock's time went: part, share and time of each that rounds to 1 % at least."""
    if not score.parts or not score.seconds:
        return []
    first = score.step_at[min(score.step_at)].seconds if score.step_at else {}
    times = {"prefill": score.ttft}
    times |= {part: took - first.get(part, 0.0) for part, took in score.parts.items()}
    # Time outside steps is that of whole chunks, of later text too where there is no cache.
    times["forward"] = times.get("forward", 0.0) + max(0.0, score.seconds - sum(times.values()))
    total = sum(times.values())
    return [(part, t / total, duration(t)) for part, t in times.items() if t >= 0.005 * total]
