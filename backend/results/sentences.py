"""A race in words: who is fastest, by how much, why, and whether the texts agree.

Every sentence that the page and the command line show of a result is made here.
"""

import re
from collections.abc import Sequence
from math import ceil, isfinite, log
from statistics import mean

import numpy as np

from backend.engines.registry import engines
from backend.events import Conditions
from backend.results.figures import (
    as_long,
    by_position,
    counted,
    duration,
    factor,
    likely,
    listed,
    rate,
)
from backend.results.intervals import Ratio
from backend.results.metrics import Score
from backend.results.scoreboard import ENDED, Scoreboard
from backend.results.track import (
    ALIKE,
    BY_DESIGN,
    Standing,
    as_fast,
    early,
    photo_finish,
    place,
    position,
    ranks,
    settles,
    standing,
    taking_turns,
    unit_of,
)

#: Timings are doubted when others use more than SPOILED of the machine, when a quarter of the
#: one-token passes take longer than the middle one by more than SPREAD, or when the baseline was
#: slower or faster by more than APART while another column ran than over its whole text.
SPOILED, SPREAD, APART = 0.25, 0.25, 0.15

#: Nobody would wait for more tokens than this.
FAR = 10_000

#: Seconds below which no time left is told: how long the answer becomes decides too much of it.
SOON = 20.0

#: The same once one has finished, which says how long the answer is.
SURE = 3.0

_NO_LONGER_LENT = (
    "The race ended early because the GPU time was used up: ask for fewer tokens or columns."
)

#: The status of a race before any result is known.
TURNS = "Columns take turns; each is timed only while it computes."
ALONE = "Columns that cannot take turns run alone, one after another."

#: The glossary's entries besides the figures.
TERMS = {
    "Pass": "One run of the model. It can check several guessed tokens at once, and then takes "
    "longer. Example: a pass over 5 rows checks 4 guesses and takes 1.3 times as long as a "
    "one-token pass.",
    "k": "How many tokens a column guesses per pass, before the model checks them. Example: with "
    "k=4 a pass computes 5 rows and writes 1 to 5 tokens.",
    "Own clock": "Each column is timed only while it computes. Columns take turns on one machine "
    "and share one copy of the weights. Example: in a race of 60 s, a column's own clock may show "
    "12 s.",
    "Identical": "The column wrote exactly the same tokens as KV reuse. With fp32, int4-exact and "
    "int8-exact weights this always holds. With bf16, int8 or int4 arithmetic, rounding may decide "
    "between two tokens with nearly equal scores. Example: the scores 17.31 and 17.30 may swap.",
    "Same text": "All columns use the same random number at the same position, and a guess is kept "
    "only if the model itself would have chosen it. So the text is that of KV reuse, at any "
    "temperature. At least (1 - TV) / (1 + TV) of the guesses are kept, where TV is the total "
    "variation distance between draft and target. Example: TV = 0.3 keeps 54%.",
    "Same distribution": "Speculative sampling: a guess is kept with probability min(1, p / q). "
    "The text differs from that of KV reuse but is just as likely, and 1 - TV of the guesses are "
    "kept. Example: TV = 0.3 keeps 70%. At temperature 0 both promises are the same.",
}

#: What the advice holds for.
_HERE = "On this model and machine, for prompts like this"

#: Which clock times a column that a server writes.
_CLOCKS = {"server": "by the server's own clock", "network": "over the network"}

_PACES = {
    "base": "baseline",
    "faster": "\N{BLACK UP-POINTING TRIANGLE} faster",
    "slower": "\N{BLACK DOWN-POINTING TRIANGLE} slower",
    "control": "same work",
}

#: What is said of another target, by the part of its spec that differs.
_OWN_TARGET = {
    "name": "its model is {}",
    "precision": "its weights are {}",
    "engine": "it runs on {}",
    "device": "its device is {}",
}


def pass_cost(board: Scoreboard, index: int) -> float:
    """How many times as long as a pass of the baseline this column's pass takes, with drafting and
    masks; 0 while unknown. Speed-up = tokens per pass / this.
    """
    speedup = board.speedup(index)
    return board.scores[index].tokens_per_forward / speedup if speedup else 0.0


# --- the race -----------------------------------------------------------------------------------


def headline(board: Scoreboard) -> str:
    """A few short sentences on a race that has ended."""
    return " ".join(filter(None, headlines(board)))


def headlines(board: Scoreboard) -> tuple[str, str]:
    """The verdict of a race that has ended, and what else is to be said of it in short."""
    states = [score.state for score in board.scores]
    if set(states) == {"failed"}:
        return "No column finished: each card says why.", ""
    speed = _speed(board) or "The columns wrote too few tokens to compare speeds."
    failed = _failures(board)
    if "stopped" in states:
        lent = any(score.reason == "end of GPU time" for score in board.scores)
        if not lent and not any(score.length for score in board.scores):
            return "Stopped before the first token.", failed
        return f"{_NO_LONGER_LENT if lent else 'Stopped early.'} {speed}", failed
    rest = [_kept_texts(board), _other_weights(board), failed]
    return speed, " ".join(filter(None, rest))


def live(board: Scoreboard) -> str:
    """What is known while a race runs: which columns are faster or slower, and which finished
    first; in a noisy race, that alone. It changes only when one of these changes, not with every
    token.
    """
    if board.noisy:
        return f"The result will be rough: {_taken(board)}."
    base, parts = board.baseline_index, []
    running = [i for i, score in enumerate(board.scores) if score.state != "failed"]
    for shown in ("faster", "slower"):
        names = [board.name(i) for i in running if board.pace(i) == shown]
        if names:
            parts.append(f"{listed(names)} {_are(names)} {shown} than {board.name(base or 0)}")
    settled = f"So far {'; '.join(parts)}." if parts else ""
    if finish := photo_finish(board):
        settled = f"{board.name(finish.column)} finished first."
    return " ".join(filter(None, (settled, _failures(board))))


def reading(board: Scoreboard) -> str:
    """How many columns have read the prompt; "" once all have, and of a column without rivals."""
    running = [board.scores[i] for i in taking_turns(board)]
    done = sum(any(moment.tokens for moment in score.moments) for score in running)
    if len(running) < 2 or done == len(running):
        return ""
    return f"Columns read the prompt one after another: {done} of {len(running)} are ready"


def lead(board: Scoreboard) -> str:
    """Who is ahead in a race that runs, and by how much, or who finished first; "" while nobody is
    ahead.
    """
    now = standing(board)
    return "" if now is None or early(board) else stands(board, now)


def stands(board: Scoreboard, now: Standing) -> str:
    """How the race stands at a moment; "" of a lane without rivals. By how much one leads is left
    open ("... by"), because it is what the lanes on the page show.
    """
    name, (gap, second) = board.name(now.column), _gap(board, now)
    if not gap:
        together = "finish together" if now.finished else "are level"
        return f"{name} and {second} {together}" if second else ""
    if now.finished:
        return f"{name} finishes first, {gap} ahead of {second}"
    return f"{name} leads {second} by"


def _gap(board: Scoreboard, now: Standing) -> tuple[str, str]:
    """The tokens between the first lane and the second, "" of equal ones, and the second's name, ""
    where there is none, "the others" where several are second.
    """
    others = [
        (position(board, i, now.seconds), board.name(i))
        for i in ranks(board, now)
        if i != now.column
    ]
    second, name = max(others, default=(now.length, ""))
    gap = now.length - second
    if sum(length == second for length, _ in others) > 1:
        name = "the others"
    return counted(gap, unit_of(board)) if gap else "", name


def _failures(board: Scoreboard) -> str:
    """Which columns failed."""
    names = [board.name(i) for i, score in enumerate(board.scores) if score.state == "failed"]
    said = "its card says" if len(names) == 1 else "their cards say"
    return f"{listed(names)} failed: {said} why." if names else ""


def _are(names: Sequence[object]) -> str:
    return "is" if len(names) == 1 else "are"


def time_left(board: Scoreboard, goal: int) -> str:
    """How long a race may still take, in which a column may write `goal` tokens, or as many as the
    first to finish; "" while unknown and if it ends SOON.

    The columns take turns, so what each still needs adds up.
    """
    finish = photo_finish(board)
    goal, least = (finish.length, SURE) if finish else (goal, SOON)
    total, names = 0.0, list[str]()
    for index, score in enumerate(board.scores):
        if score.state in ENDED:
            continue
        if not score.tpot or score.fed:
            return ""
        names.append(board.name(index))
        tokens = goal - score.length
        total += max(0, tokens) * score.tpot
    if total < least:
        return ""
    whom = f" for {names[0]}" if len(names) == 1 < len(board.scores) and not finish else ""
    return f"up to {_roundly(total)} left{whom}"


def writing(board: Scoreboard) -> str:
    """Who still writes once one has finished."""
    running = [board.name(i) for i, score in enumerate(board.scores) if score.state not in ENDED]
    whole = 2 < len(running) == len(board.scores) - 1
    return f"{'The others' if whole else listed(running)} {_are(running)} still writing."


def frozen(board: Scoreboard) -> str:
    """What the bars of an ended race show; "" if they are the speed-ups, or no column was first."""
    finish = photo_finish(board)
    if finish is None:
        return ""
    if not settles(board, finish):
        return f"Bars stop when {board.name(finish.column)} finishes."
    return "The shorter the time, the longer the bar." if unit_of(board) == "character" else ""


def waiting(ahead: int) -> str:
    """How many races go first."""
    if ahead == 1:
        return "One race is ahead of yours; yours starts when it ends."
    return f"{ahead} races are ahead of yours; yours starts when they end."


def still(board: Scoreboard, ahead: int) -> str:
    """Why nothing may have moved for long in a race that has not ended."""
    if ahead:
        return "Nothing moves while other races run on this machine."
    running = [i for i, score in enumerate(board.scores) if score.state not in ENDED]
    started = any(score.state != "queued" for score in board.scores)
    if board.preparing or not started or not running:
        return "This takes long: a model is loading, or the machine is busy."
    among = taking_turns(board) or running
    index = min(among, key=lambda i: board.scores[i].seconds)  # whose turn it is
    reads = board.scores[index].state != "decoding"
    what = "reading the prompt" if reads else "a step"
    return f"The machine is busy: {what} of {board.name(index)} takes more than 10 s."


def _roundly(seconds: float) -> str:
    """A time to wait, rounded."""
    if seconds < 100:
        return f"{5 * max(1, ceil(seconds / 5 - 0.01))} s"
    if seconds < 3600:
        return f"{round(seconds / 60)} min"
    return f"{round(seconds / 3600)} h"


def _speed(board: Scoreboard) -> str:
    """Which column with the same text is fastest, and whether one with another text is faster."""
    if board.noisy:
        return f"Too noisy to tell: {_taken(board)}."
    if any(score.fed for score in board.scores):
        return _program(board)
    known = _quickest(board)
    if not known:
        return ""
    keeping, fastest = [i for i in known if _same_text(board, i)], known[0]
    if not board.baseline.tpot:  # nothing says which text is the right one
        keeping = []
    best = (keeping or known)[0]
    other = fastest not in (best, *keeping) and board.pace(fastest) == "faster"
    sentence = _best(board, best, alone=len(keeping) == 1, other=other)
    if not other:
        return sentence
    gain = f"{factor(board.speedup(fastest))} as fast"
    return f"{sentence} {board.name(fastest)}, {_own_text(board, fastest)}, is {gain}."


def _same_text(board: Scoreboard, index: int) -> bool:
    """True if the column must write the baseline's text, or wrote it under its own grammar."""
    same = board.reference(index) == board.baseline_index and board.sameness(index) == "same"
    return board.keeps_text(index) or (same and board.scores[index].spec == board.baseline.spec)


def _first(board: Scoreboard, best: int) -> int | None:
    """The column that finished before column `best`; None if that was first itself. A speed-up is
    of whole texts and never of the prompt; a place is of one moment, and may be of the prompt too.
    """
    finish = photo_finish(board)
    ahead = finish is not None and place(board, best, finish) != 1
    return finish.column if finish and ahead else None


def _ordered(board: Scoreboard, index: int) -> bool:
    """True if the column's speed can be compared: over the baseline's tokens if there is one."""
    score = board.scores[index]
    compared = not board.baseline.tpot or score.speedup_over(board.baseline) > 0
    return score.state != "failed" and score.tpot > 0 and compared and not board.control(index)


def _quickest(board: Scoreboard) -> list[int]:
    """The columns whose speed can be compared, the quickest first."""
    known = [i for i in range(len(board.scores)) if _ordered(board, i)]
    return sorted(known, key=lambda i: _quickness(board, i), reverse=True)


def _quickness(board: Scoreboard, index: int) -> tuple[bool, float, float]:
    """The order of columns: those that are shown to be faster come first."""
    faster = board.pace(index) == "faster"
    return faster, board.speedup(index), board.scores[index].tokens_per_second


def _program(board: Scoreboard) -> str:
    """How long each column took for a program, the fastest first."""
    took = sorted(
        (score.seconds, board.name(i))
        for i, score in enumerate(board.scores)
        if score.state == "done"
    )
    if not took:
        return ""
    (quickest, first), *others = took
    said = f"{first} finished first, in {duration(quickest)}"
    times = [f"{name} took {duration(seconds)}" for seconds, name in others]
    return f"{'; '.join(filter(None, (said, listed(times))))}."


def _best(board: Scoreboard, best: int, *, alone: bool, other: bool) -> str:
    """What to say of the fastest column with the same text. `alone`: there is no other such column.
    `other`: one with another text is faster.
    """
    base, name = board.baseline_index, board.name(best)
    if base is None or not board.scores[base].tpot:
        speed = rate(board.scores[best].tokens_per_second)
        return f"{name} is fastest with {speed} tokens a second."
    plain = board.name(base)
    if alone:
        return f"{plain} writes {rate(board.scores[base].tokens_per_second)} tokens a second."
    if board.pace(best) != "faster":
        which = "no strategy with the same text" if other else "no strategy"
        said = f"{which} was measurably faster than {plain}{_slower(board)}"
        finish = None if other else photo_finish(board)
        if finish is None or finish.column == base:
            return as_sentence(said)
        return f"{board.name(finish.column)} finished first, but that may be chance: {said}."
    alike = as_fast(board, best)
    first, *close = [i for i in _faster_same(board) if i in alike] or [best]
    if close:
        names = [f"{board.name(i)} ({factor(board.speedup(i))})" for i in close]
        much = f"{factor(board.speedup(first))} as fast as {plain}."
        return f"{board.name(first)} wins: {much} {listed(names)} may be just as fast."
    return _fastest(board, best, None if other else _first(board, best))


def _fastest(board: Scoreboard, best: int, first: int | None) -> str:
    """By how much the fastest column is faster, and which column finished before it, if any."""
    name, plain = board.name(best), board.name(board.baseline_index or 0)
    much = f"{factor(board.speedup(best))} as fast as {plain}."
    if first is None:
        return f"{name} wins: {much}"
    led = f"{board.name(first)} finished first"
    if board.speedup(first) > board.speedup(best):
        return f"{led}, which may be chance; {name} is measurably {much}"
    return f"{led}; {name} wrote fastest, {much}"


def _slower(board: Scoreboard) -> str:
    """Which strategies with the same text were slower, as the end of a sentence."""
    names = [
        board.name(i)
        for i, column in enumerate(board.columns)
        if board.pace(i) == "slower" and board.keeps_text(i) and not column.plain
    ]
    were = "was" if len(names) == 1 else "were"
    return f"; {listed(names)} {were} slower" if names else ""


def likely_within(board: Scoreboard, index: int) -> str:
    """Between which values the speed-up lies; "" where there is no interval."""
    gain = board.gain(index)
    between = f"{gain.low:.2f} to {gain.high:.2f}"
    known = gain.known and not board.noisy
    return f"95% interval of the speed-up in this race: {between}" if known else ""


def doubts(board: Scoreboard, index: int) -> str:
    """How many more tokens would show whether a column is faster or slower; "" if that is known,
    cannot be known, or would take too many.
    """
    gain, written = board.gain(index), board.scores[index].length
    more = (gain.needed - 1) * written
    if board.pace(index) or board.noisy or not written or more > FAR:
        return ""
    return f"about {max(float(f'{more:.1g}'), 10):,.0f} more tokens would show which is faster"


def _own_text(board: Scoreboard, index: int) -> str:
    """How the text of a column with another text differs from the others."""
    base, column = board.baseline_index, board.columns[index]
    if base is not None and column.grammar and column.grammar != board.columns[base].grammar:
        return "whose grammar changed its text"
    if not board.scores[index].keeps_text and board.draws_alike(index):
        return "which draws a different text from the same distribution"
    if not board.lossless(index):
        return "which writes a different text"
    kept = board.sameness(index) == "same"
    return "which wrote the same text" if kept else "whose text may differ"


def _kept_texts(board: Scoreboard) -> str:
    """Whether the texts that must be identical are."""
    others = [
        i
        for i, score in enumerate(board.scores)
        if board.must_match(i) and board.compared(i) and score.state != "failed"
    ]
    if not others:
        return ""
    changed = [board.name(i) for i in others if board.difference(i) is not None]
    if changed:
        return f"The text changed in {listed(changed)}."
    references = {board.reference(index) for index in others}
    # A grammar may leave the text as it is: that column need not match, but it does.
    spec, scores = board.baseline.spec, enumerate(board.scores)
    alike = {i for i, score in scores if score.spec == spec and board.sameness(i) == "same"}
    same = sorted({*others, *alike, *(i for i in references if i is not None)})
    cut = [i for i in same if _shorter(board, i)]
    rest = _cut_short(board, cut)
    if len(others) == 1 and len(same) == 2:
        reference = board.name(board.reference(others[0]) or 0)
        return f"The texts of {reference} and {board.name(others[0])} are identical{rest}."
    if len(references) > 1:
        which = "Both" if len(others) == 2 else f"All {_number(len(others))}"
        return f"{which} texts are the same as those they must match."
    if len(same) - len(cut) < 2:
        return f"The other texts match {board.name(board.baseline_index or 0)} but stop early."
    whole, count = _number(len(board.columns)), _number(len(same) - len(cut)).capitalize()
    which = count if cut else f"All {whole}"
    if len(same) < len(board.columns):
        which = f"{count} of {whole}"
    return f"{which} texts are identical{rest}."


def _shorter(board: Scoreboard, index: int) -> bool:
    """True if the column's text is the beginning of its reference's."""
    reference, text = board.reference(index), board.scores[index].text
    whole = "" if reference is None else board.scores[reference].text
    return board.sameness(index) == "same" and len(text) < len(whole)


def _cut_short(board: Scoreboard, cut: Sequence[int]) -> str:
    """That the texts of some columns stop early, as the end of a sentence; "" of none."""
    return f"; {listed([board.name(i) for i in cut])} stopped early" if cut else ""


def _number(count: int) -> str:
    """A small number as a word."""
    words = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    return words[count] if count < len(words) else str(count)


def _other_weights(board: Scoreboard) -> str:
    """How other weights or engines changed the text, column by column."""
    clauses: list[str] = []
    for index in range(len(board.columns)):
        if not board.lossless(index) or board.keeps_text(index) or board.must_match(index):
            continue
        name, plain = board.name(index), board.name(board.reference(index) or 0)
        difference = board.difference(index)
        if difference is not None:
            clauses.append(f"{name} differs from {plain} from token {difference.index + 1}")
        elif board.compared(index):
            clauses.append(f"{name} wrote the same text as {plain}")
    return f"With other weights or engines, {'; '.join(clauses)}." if clauses else ""


def _faster_same(board: Scoreboard) -> list[int]:
    """The columns with the same text that are measurably faster, the fastest first; if the first to
    finish is too close to it to call, that one.
    """
    same = [i for i in _quickest(board) if _same_text(board, i) and board.pace(i) == "faster"]
    finish = photo_finish(board)
    if same and finish and finish.column in as_fast(board, same[0]):
        same.sort(key=lambda i: i != finish.column)
    return same


def ledger(board: Scoreboard) -> str:
    """What else the machine did during the race, and whether that spoils its timings; "" of a race
    in which no column ran.
    """
    found = board.conditions
    if found is None or not any(score.steps for score in board.scores):
        return ""
    parts = [f"During the race {taken_by_others(found)}."]
    low, middle, high = board.baseline.wobble
    if middle:
        half = f"{duration(low)} and {duration(high)}"
        parts.append(f"A one-token pass took {duration(middle)}; half took between {half}.")
    reused = [board.name(i) for i, score in enumerate(board.scores) if score.reused]
    caches = f"{listed(reused)} began from a reused cache." if reused else "No cache was reused."
    parts += [caches, *_controls(board), _prompt_left_out(board), _in_common(board)]
    if doubt(board):
        parts.append("Speeds may be off: run again when the machine is less busy.")
    return " ".join(filter(None, parts))


def _prompt_left_out(board: Scoreboard) -> str:
    """That speed-ups do not count the time to read the prompt; "" of a program and one column."""
    bars = "Bars and speed-ups" if settles(board, photo_finish(board)) else "Speed-ups"
    none = len(board.scores) < 2 or any(score.fed for score in board.scores)
    return "" if none else f"{bars} leave out the time to read the prompt."


def _in_common(board: Scoreboard) -> str:
    """Why a speed-up is not the quotient of two whole times; "" where it nearly is."""
    most = _apart(board)
    if abs(log(most)) < log(ALIKE):
        return ""
    name, slower = board.name(board.baseline_index or 0), "slower" if most > 1 else "faster"
    return (
        f"Speed-ups compare columns while both run; {name} was {abs(most - 1):.0%} {slower} then "
        "than over its whole text."
    )


def _apart(board: Scoreboard) -> float:
    """How many times as long a step of the baseline took while both ran as over its whole text, by
    the column for which that differs most; 1 while unknown.
    """
    base = board.baseline
    apart = [
        board.speedup(i) * score.tpot / base.tpot
        for i, score in enumerate(board.scores)
        if base.tpot and score.length == base.length and board.gain(i).known
    ]
    return max(apart, key=lambda ratio: abs(log(ratio)), default=1.0)


def _controls(board: Scoreboard) -> list[str]:
    """How far chance alone went: the speed-up of columns that did what the baseline does."""
    return [
        f"{board.name(i)} worked like {board.name(board.baseline_index or 0)}, so its "
        f"{likely(board.gain(i))} is pure chance."
        for i in range(len(board.columns))
        if board.control(i) and board.speedup(i)
    ]


def doubt(board: Scoreboard) -> str:
    """Why a race's timings are in doubt, in few words; "" if they are not."""
    found = board.conditions
    if found is None:
        return ""
    if board.noisy:
        return f"Too noisy to tell: {_taken(board)}."
    if found.others > SPOILED:
        return f"Speeds may be off: {_taken(board)}."
    _, middle, high = board.baseline.wobble
    varied = max(high / middle - 1 if middle else 0.0, abs(_apart(board) - 1))
    changed = f"Speeds may be off: the machine's speed varied by {varied:.0%}."
    wobbles = high > middle * (1 + SPREAD)
    return changed if wobbles or abs(log(_apart(board))) > log(1 + APART) else ""


def _taken(board: Scoreboard) -> str:
    """How much of the machine others used."""
    return f"others used {board.conditions.others if board.conditions else 0:.0%} of the machine"


def taken_by_others(found: Conditions) -> str:
    """How much of how many cores others used."""
    return f"other programs used {found.others:.0%} of {counted(found.cores, 'core')}"


# --- one column ---------------------------------------------------------------------------------


def state(score: Score) -> str:
    """What the column is doing, or how it ended, in a word or two."""
    if score.state == "prefill":
        reading = f"reading the prompt: {score.prefilled} of {score.prompt_tokens}"
        return reading if score.prompt_tokens else "waiting for its first token"
    return "incomplete" if score.state == "done" and score.expected else score.state


def ending(score: Score) -> str:
    """How many tokens a column wrote, how long it took, and why it ended; "" before its
    clock has started.
    """
    if not score.seconds:
        return ""
    limited = score.reason not in ("", "end of text", "end of program", "stopped")
    reason = f"; stopped by: {score.reason}" if limited else ""
    return f"{counted(score.length, 'token')} in {duration(score.seconds)}{reason}"


def advice(board: Scoreboard) -> str:
    """Which column is fastest for prompts like this one; "" while unknown, and of a program."""
    if board.noisy or not board.baseline.tpot or any(score.fed for score in board.scores):
        return ""
    if not (same := _faster_same(board)):
        plain = board.name(board.baseline_index or 0)
        return f"{_HERE}, use {plain}: no column with its text was measurably faster."
    return f"{_HERE}, {board.name(same[0])} writes the same text fastest."


def reasons(board: Scoreboard) -> list[str]:
    """Which column to use, and why each is as fast as it is, in whole sentences."""
    plain = board.name(board.baseline_index or 0)
    told = list(filter(None, [advice(board)]))
    for i, score in enumerate(board.scores):
        cost, wrote = pass_cost(board, i), score.tokens_per_forward
        if not cost or i == board.baseline_index or score.fed:
            continue
        guesses = f"{score.drafted / score.passes:.1f} guesses a pass"
        right = f"{guesses}, of which {score.acceptance:.0%} were accepted" if score.drafted else ""
        forced = f"its grammar forced {counted(score.forced, 'token')}" if score.forced else ""
        because = " and ".join(filter(None, (right, forced)))
        gained = f"{because}, so a pass" if because else "a pass"
        again = (
            ""
            if board.columns[i].strategy.keeps_cache
            else ", because it reads the whole text again"
        )
        told.append(
            f"{board.name(i)}: {gained} wrote {wrote:.2f} tokens. It took {cost:.2f} times as long "
            f"as a pass of {plain}{again}. {wrote:.2f} \N{DIVISION SIGN} {cost:.2f} = "
            f"{board.speedup(i):.2f}."
        )
    return told


def pace(board: Scoreboard, index: int) -> str:
    """How a column's speed compares with the baseline's, in a few words."""
    if (shown := board.pace(index)) in _PACES:
        return _PACES[shown]
    # Why it is called neither faster nor slower; "" while it may still be.
    score = board.scores[index]
    if board.speedup(index) and score.clock != board.baseline.clock:
        return "another clock"
    if board.noisy:
        return ""  # the headline says so, once
    if score.fed and board.speedup(index):  # a program runs once: two times, and no interval
        return as_long(board.speedup(index))
    if board.gain(index).known:
        return "no clear difference"
    short = board.speedup(index) and score.state in ENDED and score.reason != BY_DESIGN
    return "too short to tell" if short else ""


def kept(board: Scoreboard, index: int) -> str:
    """How a column's text compares, in two words; "" if there is nothing to compare it with."""
    score = board.scores[index]
    if score.judged and score.judged.verdict == "invalid":
        return "not valid"
    words = {"same": "same text", "differs": "text changed", "allowed": "different text"}
    return "same beginning" if _shorter(board, index) else words.get(board.sameness(index), "")


def brief(board: Scoreboard, index: int) -> str:
    """The one sentence on a column that has ended: what is wrong with its text, or else why it is
    as fast as it is.
    """
    score = board.scores[index]
    if score.state == "failed":
        return ""  # its message stands where its text would
    judged = score.judged
    if board.sameness(index) == "differs" or (judged and judged.verdict == "invalid"):
        return as_sentence(verdict(board, index))
    if judged and index == board.baseline_index:
        return as_sentence(validity(score))
    return as_sentence(_cause(board, index))


def reason(board: Scoreboard, index: int) -> str:
    """Why a column is as fast as it is: tokens per pass and the time of a pass, what both come to,
    the prediction, and what was declined; "" while unknown and for the baseline itself.
    """
    cause, made_of = _cause(board, index), equation(board, index)
    if made_of and cause.startswith(made_of) and (shown := _comes_to(board, index)):
        cause = cause.replace(made_of, f"{made_of}, {shown}", 1)
    return "; ".join([cause, *_asides(board, index)])


def aside(board: Scoreboard, index: int) -> str:
    """What `reason` says beyond `brief` and the verdict that the lane shows."""
    whole = as_sentence("; ".join([_cause(board, index), *_asides(board, index)]))
    begun = brief(board, index).removesuffix(".")
    return whole.removeprefix(begun).removesuffix(".").removeprefix("; ")


def _cause(board: Scoreboard, index: int) -> str:
    """Why a column is as fast as it is, without what that comes to."""
    why = _exception(board, index) or equation(board, index)
    return "; ".join(filter(None, (why, ran_alone(board, index))))


def _asides(board: Scoreboard, index: int) -> list[str]:
    """Acceptance by position, the share of drafting, the prediction, and what was declined."""
    score, exception, parts = board.scores[index], _exception(board, index), list[str]()
    if score.fed or board.control(index) or not _cause(board, index):
        return parts
    if shares := by_position(score.positions):
        parts.append(f"guesses accepted by position {shares}")
    if drafting := _drafting(board, score):
        parts.append(f"drafting takes {drafting:.2f} of a one-token pass")
    # A prediction is over plain decoding on the column's own model. What was declined states the
    # prediction of that moment, which costs of passes as measured since would contradict.
    foretold = score.decision.declined or score.spec != board.baseline.spec
    if score.drafted and score.predicted and not foretold:
        parts.append(f"predicted speed-up {factor(score.predicted)}")
    return parts if exception else [*parts, *score.decision.declined]


def ran_alone(board: Scoreboard, index: int) -> str:
    """That a column took no turns, and whose clock timed it if not its own; "" of others."""
    score = board.scores[index]
    if not (board.columns[index].strategy.alone and score.steps):
        return ""
    parts = ["ran alone"]
    if score.clock in _CLOCKS:
        trip = f"round trip {duration(score.round_trip)}"
        parts.append(f"timed {_CLOCKS[score.clock]} ({trip})")
    return ", ".join([*parts, *(() if score.times else ("without token counts",))])


def _exception(board: Scoreboard, index: int) -> str:
    """The sentence on a program's column, and on one that declined to guess."""
    score = board.scores[index]
    decision = score.decision
    if index == board.baseline_index or not board.speedup(index):
        return ""
    if score.fed:
        return f"it computed {counted(score.rows, 'token')} in {counted(score.steps, 'pass')}"
    declined = ""
    if decision.plain and not score.drafted:
        declined = "; ".join(decision.declined) or decision.why
    if board.control(index):
        same = f"it worked like {board.name(board.baseline_index or 0)}"
        return f"{declined}, so {same}" if declined else same
    return declined


def equation(board: Scoreboard, index: int) -> str:
    """Tokens per pass, how long a pass takes, and the speed-up that this makes; "" while unknown
    and for the baseline itself.
    """
    score, cost, base = board.scores[index], pass_cost(board, index), board.baseline_index
    if not cost or base is None or index == base:
        return ""
    gain = Ratio(board.speedup(index)) if board.noisy else board.gain(index)
    written = f"{score.tokens_per_forward:.2f}"
    gained = "1 token" if written == "1.00" else f"{written} tokens"
    return f"{gained} per pass \N{DIVISION SIGN} {factor(cost)} the time = {likely(gain)}"


def _comes_to(board: Scoreboard, index: int) -> str:
    """Whether tokens per pass and the time of a pass make a column faster; "" while unknown."""
    unclear = board.gain(index).known and not board.noisy
    return board.pace(index) or ("no clear difference" if unclear else "")


def _drafting(board: Scoreboard, score: Score) -> float:
    """One-token passes of the baseline that drafting takes per pass; 0 below a twentieth."""
    plain = board.baseline.tpot
    if not plain or not score.passes:
        return 0.0
    steps = score.drafting / score.passes / plain
    return steps if steps >= 0.05 else 0.0


def outcome(board: Scoreboard, index: int) -> str:
    """A column's result, for the last cell of its line in a table; "" while unknown."""
    if board.scores[index].message:
        return "failed"
    role = "baseline" if index == board.baseline_index else ""
    return "; ".join(filter(None, (role, verdict(board, index))))


def verdict(board: Scoreboard, index: int) -> str:
    """Whether column `index` wrote what it must; "" while unknown."""
    return "; ".join(filter(None, (_comparison(board, index), validity(board.scores[index]))))


def validity(score: Score) -> str:
    """What an independent validator says of a text that its JSON Schema let end; "" of others."""
    judged = score.judged
    if judged is None:
        return ""
    if judged.verdict == "valid":
        return "valid against its schema"
    what = "checked" if judged.verdict == "unchecked" else "valid"
    return f"not {what} against its schema: {judged.why}"


def _comparison(board: Scoreboard, index: int) -> str:
    """How a column's text compares with its reference's."""
    reference, score = board.reference(index), board.scores[index]
    if reference is None or not (score.steps and board.scores[reference].steps):
        return ""
    name, base = board.name(reference), board.scores[reference]
    if not board.compared(index):
        known = score.tokenizer and base.tokenizer and score.tokenizer != base.tokenizer
        why = "its tokenizer is different" if known else "its tokens are not known"
        return f"not compared with {name}: {why}"
    difference = board.difference(index)
    if not score.keeps_text and board.draws_alike(index):
        text = f"but a different text from token {difference.index + 1}" if difference else ""
        return f"same distribution as {name}, {text or 'and so far the same text'}"
    if difference is None:
        return _identical(board, index, reference)
    place = f"{name} at token {difference.index + 1}"
    if not board.may_differ(index):
        apart = f", where the two best scores are {difference.gap:.2g} apart"
        return f"differs from {place}{apart if isfinite(difference.gap) else ''}{_rounding(score)}"
    gap = f" (scores {difference.gap:.2g} apart)" if isfinite(difference.gap) else ""
    demand = _demand(board, index, reference)
    targets = _own_target(score, base)
    because = f", {'; '.join([demand, *targets])}" if demand else f"{gap}: {' and '.join(targets)}"
    return f"differs from {place}{because}"


def _rounding(score: Score) -> str:
    """Why a column may differ from another one of its model, a clause; "" where it must not."""
    declared, precision = engines().get(score.spec.get("engine", "")), score.spec.get("precision")
    if declared is None or not declared.exact or precision in declared.exact:
        return ""
    return (
        f": at {precision}, {declared.title} rounds differently in wider passes; at "
        f"{declared.exact[0]} it does not"
    )


def _identical(board: Scoreboard, index: int, reference: int) -> str:
    score, base, name = board.scores[index], board.scores[reference], board.name(reference)
    unit, compared = "character" if board.by_text(index) else "token", board.compared(index)
    tokens = counted(compared, unit)
    if not score.state == base.state == "done":
        return f"identical to {name} so far ({tokens})"
    if compared < len(board.sides(index)[1]):
        return f"identical to {name} but shorter ({tokens})"
    return f"identical to {name} ({tokens})"


def _demand(board: Scoreboard, index: int, reference: int) -> str:
    """Why a column differs from its reference on the same weights."""
    column = board.columns[index]
    if not board.scores[index].keeps_text and board.scores[index].spec:
        return "because it keeps the distribution, not the text"
    return (
        "because its grammar is different"
        if column.grammar != board.columns[reference].grammar
        else ""
    )


def _own_target(score: Score, base: Score) -> list[str]:
    """How a column's target differs from its reference's, a clause each."""
    if not score.spec or not base.spec:
        return ["its model is not known"]
    return [
        clause.format(score.spec.get(part, "unknown"))
        for part, clause in _OWN_TARGET.items()
        if score.spec.get(part, "") != base.spec.get(part, "")
    ]


def remark(score: Score) -> str:
    """The column's decision, the cost of its grammar and the reused tokens."""
    why = "" if score.decision.plain else score.decision.why
    parts = [*map(as_sentence, why.split("; ")), _promise(score), _grammar(score)]
    if score.expected:
        parts.append(f"Incomplete: the grammar still expects {score.expected}.")
    if score.reused:
        parts.append(f"{score.reused} of {score.prompt_tokens} tokens reused.")
    return " ".join(filter(None, parts))


def _promise(score: Score) -> str:
    """The share of guesses that either promise accepts, where both distributions are known."""
    if not score.overlaps:
        return ""
    drawn, keyed = mean(score.overlaps), mean(same / (2 - same) for same in score.overlaps)
    return (
        f"Draft and target overlapped by 1 - TV = {drawn:.2f} on average. Same distribution "
        f"accepts that share of the guesses; same text accepts at least {keyed:.2f}."
    )


def _grammar(score: Score) -> str:
    """How long the grammar's masks took, how much of that was waited for, and forced tokens."""
    if not score.masks or not score.seconds:
        return ""
    p50, p99 = (duration(float(value)) for value in np.percentile(score.masks, (50, 99)))
    return (
        f"The grammar was compiled in {duration(score.compiled)}. Its {len(score.masks)} masks "
        f"took {duration(mean(score.masks))} on average (p50 {p50}, p99 {p99}, longest "
        f"{duration(max(score.masks))}); the column waited for them "
        f"{score.parts.get('mask', 0.0) / score.seconds:.1%} of its time. "
        f"{score.forced} of {score.length} tokens were forced."
    )


def as_sentence(clause: str) -> str:
    """A clause with a capital and a full stop; "" of none."""
    return f"{clause[0].upper()}{clause[1:].removesuffix('.')}." if clause else ""


def shortened(text: str, most: int = 120) -> str:
    """`text` in quotes, its middle left out if it is long."""
    half = most // 2
    return f'"{text}"' if len(text) <= most else f'"{text[:half]} [...] {text[-half:]}"'


def gist(prompt: str) -> str:
    """How a long prompt begins and its last paragraph, which is the question after worked examples:
    as the page shows a prompt that nobody edits (assets/ask.js).
    """
    parts = re.split(r"\n\s*\n", prompt.strip())
    return (
        f"{parts[0].splitlines()[0]} \N{HORIZONTAL ELLIPSIS} {parts[-1]}"
        if len(parts) > 2
        else prompt
    )
