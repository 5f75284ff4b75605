"""A race in words: who is fastest, by how much, why, and whether the texts agree.

Every sentence that the page and the command line show of a result is made here.
"""

from collections.abc import Sequence
from math import isfinite
from statistics import mean

import numpy as np

from backend.events import Conditions, Served
from backend.results.figures import counted, duration, factor, rate, span
from backend.results.metrics import Score
from backend.results.scoreboard import ENDED, Scoreboard

#: Tokens per forward above which more than plain decoding has come out.
PLAIN = 1.03

#: Shares of the machine that others may take, and by which a quarter of the plain steps may exceed
#: the middle one, before a race's timings are called spoiled.
SPOILED, SPREAD = 0.15, 0.25

#: More tokens than that would not be waited for.
FAR = 10_000

_NO_LONGER_LENT = (
    "The race ended early because the GPU was lent for no longer: ask for fewer tokens or columns."
)

#: What is said of a race before anything of it is settled.
TURNS = "The columns take turns, so the lead is real."

#: What the page explains besides the figures.
TERMS = {
    "Own clock": "Wall time of the column's own steps, with the device synchronised, and of "
    "nothing else. The columns run interleaved on one device and one copy of the weights; figures "
    "of a solo run may differ a little.",
    "Identical": "The column's token ids equal those of KV reuse. A difference where the two best "
    "scores lie almost nothing apart is a numeric tie. Columns on the same weights do not differ "
    "in fp32, int4-exact and int8-exact; with quantised or half-precision arithmetic such ties are "
    "common. Between fp32 and the exact ones one may fall otherwise: other kernels add up in "
    "another order.",
    "Two promises": "Same text: every column draws the same random numbers at the same position, "
    "and a drafted token passes where the target's own choice equals it. Whatever is drafted, the "
    "text is that of KV reuse; so the draft must hit one given token, which it does with "
    "(1 - TV) / (1 + TV) at least, TV being the total variation distance of draft and target. Same "
    "distribution: a drafted token passes with probability min(1, p / q) (speculative sampling), "
    "which comes to 1 - TV and depends on the draft: another text, just as probable. At TV = 0.3 "
    "that is 0.54 against 0.70. The noise does better than it must: with the trained draft at "
    "temperature 0.7 it was 0.39 against 0.42. At temperature 0 there is no difference.",
}

#: By whose clock a server's column is timed.
_CLOCKS = {"server": "by the server's own clock", "network": "over the network"}

_PACES = {
    "base": "the baseline",
    "faster": "\N{BLACK UP-POINTING TRIANGLE} faster",
    "slower": "\N{BLACK DOWN-POINTING TRIANGLE} slower",
    "control": "a control",
}

#: How another target shows, by the part of its spec.
_OWN_TARGET = {
    "name": "its model is {}",
    "precision": "its weights are {}",
    "engine": "it runs on {}",
    "device": "its device is {}",
}


def pass_cost(board: Scoreboard, index: int) -> float:
    """How many times as long as the baseline's this column's forward pass takes, drafting and masks
    included; 0 while unknown. Speed-up = tokens per forward / this.
    """
    speedup = board.speedup(index)
    return board.scores[index].tokens_per_forward / speedup if speedup else 0.0


# --- the race -----------------------------------------------------------------------------------


def headline(board: Scoreboard) -> str:
    """A few short sentences on a race that has ended."""
    states = [score.state for score in board.scores]
    if set(states) == {"failed"}:
        return "No column finished: each card says why."
    speed = _speed(board) or "Too few tokens were written to compare speeds."
    failed = _failures(board)
    parts = [speed, _kept_texts(board), _other_weights(board), _recurrent(board), failed]
    if "stopped" in states:
        lent = any(score.reason == "end of GPU time" for score in board.scores)
        parts = [_NO_LONGER_LENT if lent else "Stopped early.", speed, failed]
    return " ".join(filter(None, parts))


def live(board: Scoreboard) -> str:
    """What is settled while a race runs: who is shown to be faster or slower, and who has ended.
    It changes with these alone, not with every token.
    """
    base, parts = board.baseline_index, []
    sound = [i for i, score in enumerate(board.scores) if score.state != "failed"]
    for shown in ("faster", "slower"):
        names = [board.name(i) for i in sound if board.pace(i) == shown]
        if names:
            parts.append(f"{_listed(names)} {_are(names)} {shown} than {board.name(base or 0)}")
    done = [board.name(i) for i in sound if board.scores[i].state in ENDED]
    if done:
        parts.append(f"{_listed(done)} {_are(done)} done")
    settled = f"So far {'; '.join(parts)}." if parts else ""
    return " ".join(filter(None, (settled, _failures(board))))


def _failures(board: Scoreboard) -> str:
    """Which columns failed."""
    names = [board.name(i) for i, score in enumerate(board.scores) if score.state == "failed"]
    said = "its card says" if len(names) == 1 else "their cards say"
    return f"{_listed(names)} failed: {said} why." if names else ""


def _listed(names: Sequence[str]) -> str:
    """Names as a sentence lists them: A, B and C."""
    *most, last = names or [""]
    return f"{', '.join(most)} and {last}" if most else last


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def time_left(board: Scoreboard, goal: int) -> str:
    """How long a race may still take, in which a column may write `goal` tokens; "" while unknown.

    The columns take turns, so what each still needs adds up.
    """
    total = 0.0
    for column, score in zip(board.columns, board.scores, strict=True):
        if score.state in ENDED:
            continue
        if not score.tpot or score.fed:
            return ""
        tokens = goal - score.length
        if column.limit:
            tokens = min(tokens, column.limit - score.written)
        total += max(0, tokens) * score.tpot
    return f"about {_roundly(total)} left"


def waiting(ahead: int, most: float) -> str:
    """How many races go first, each of which may take `most` seconds."""
    return f"{counted(ahead, 'race')} ahead of yours: {_roundly(ahead * most)} at most."


def still(board: Scoreboard, ahead: int) -> str:
    """Why nothing may have moved for long in a race that has not ended."""
    if ahead:
        return "Nothing moves while other races run on this machine."
    running = [i for i, score in enumerate(board.scores) if score.state not in ENDED]
    started = any(score.state != "queued" for score in board.scores)
    if board.preparing or not started or not running:
        return "This takes long: a model is loading, or the machine is busy."
    index = min(running, key=lambda i: board.scores[i].seconds)  # whose turn it is
    reads = board.scores[index].state != "decoding"
    what = "reading the prompt" if reads else "a step"
    return f"The machine is busy: {what} of {board.name(index)} takes more than 10 s."


def _roundly(seconds: float) -> str:
    """Seconds, in as many of them as anybody waits for."""
    if seconds < 100:
        return f"{max(5, 5 * round(seconds / 5))} s"
    if seconds < 3600:
        return f"{round(seconds / 60)} min"
    return f"{round(seconds / 3600)} h"


def _speed(board: Scoreboard) -> str:
    """Who is fastest of those that keep the text, and whether another one is faster still."""
    if any(score.fed for score in board.scores):
        return _program(board)
    known = [i for i in range(len(board.scores)) if _ordered(board, i)]
    if not known:
        return ""
    known.sort(key=lambda i: _quickness(board, i), reverse=True)
    keeping, fastest = [i for i in known if board.keeps_text(i)], known[0]
    best = (keeping or known)[0]
    sentence = _best(board, best, alone=len(keeping) == 1)
    if fastest in (best, *keeping) or board.pace(fastest) != "faster":
        return sentence
    gain = f"{board.speedup(fastest):.2f} times as fast"
    return f"{sentence} {board.name(fastest)}, {_own_text(board, fastest)}, is {gain}."


def _ordered(board: Scoreboard, index: int) -> bool:
    """True of columns that can be ordered: by the same tokens as the baseline if there is one."""
    score = board.scores[index]
    compared = not board.baseline.tpot or score.speedup_over(board.baseline) > 0
    return score.state != "failed" and score.tpot > 0 and compared and not board.control(index)


def _quickness(board: Scoreboard, index: int) -> tuple[bool, float, float]:
    """What columns are ordered by: those that are shown to be faster go first."""
    faster = board.pace(index) == "faster"
    return faster, board.speedup(index), board.scores[index].tokens_per_second


def _program(board: Scoreboard) -> str:
    """How long each column took for a program's slots."""
    base = board.baseline_index
    done = [i for i, score in enumerate(board.scores) if score.state == "done"]
    took = {i: board.scores[i].seconds for i in done}
    if base is None or not took.get(base):
        return " ".join(f"{board.name(i)} took {seconds:.2f} s." for i, seconds in took.items())
    whole = took.pop(base)
    others = ", ".join(
        f"{board.name(i)} takes {seconds / whole:.2f} times as long" for i, seconds in took.items()
    )
    plain = f"{board.name(base)} ran the program in {whole:.2f} s"
    return f"{plain}; {others}." if others else f"{plain}."


def _best(board: Scoreboard, best: int, *, alone: bool) -> str:
    base, name = board.baseline_index, board.name(best)
    if base is None or not board.scores[base].tpot:
        speed = rate(board.scores[best].tokens_per_second)
        return f"{name} is fastest with {speed} tokens a second."
    plain = board.name(base)
    if alone:
        return f"{plain} writes {rate(board.scores[base].tokens_per_second)} tokens a second."
    if board.pace(best) != "faster":
        return f"No column with the same text is clearly faster than {plain}."
    return f"{name} is {board.speedup(best):.2f} times as fast as {plain}."


def doubts(board: Scoreboard, index: int) -> str:
    """How many more tokens would tell whether a column is faster or slower; "" where that is shown,
    cannot be told, or would take too many.
    """
    gain, written = board.gain(index), board.scores[index].written
    more = (gain.needed - 1) * written
    if board.pace(index) or not written or more > FAR:
        return ""
    return f"some {max(float(f'{more:.1g}'), 10):,.0f} more tokens would show which is faster"


def _own_text(board: Scoreboard, index: int) -> str:
    """What sets a column apart that is faster than those which keep the text."""
    if not board.scores[index].keeps_text and board.draws_alike(index):
        return "which draws a different text from the same distribution"
    if not board.lossless(index):
        return "which writes a different text"
    kept = board.sameness(index) == "same"
    return "which wrote the same text" if kept else "whose text may differ"


def _kept_texts(board: Scoreboard) -> str:
    """Whether the columns that must agree do."""
    others = [
        i
        for i, score in enumerate(board.scores)
        if board.must_match(i) and board.compared(i) and score.state != "failed"
    ]
    if not others:
        return ""
    changed = [board.name(i) for i in others if board.difference(i) is not None]
    if changed:
        return f"The text changed in {_listed(changed)}."
    if len(others) == 1:
        reference = board.name(board.reference(others[0]) or 0)
        return f"{board.name(others[0])} wrote the same text as {reference}."
    references = {board.reference(index) for index in others}
    if len(references) == 1:
        return f"All {_number(len(others) + 1)} texts are identical."
    return f"All {_number(len(others))} texts are the same as those they must match."


def _number(count: int) -> str:
    """A small number as a word."""
    words = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    return words[count] if count < len(words) else str(count)


def _other_weights(board: Scoreboard) -> str:
    """What other weights did to the text, column by column."""
    clauses: list[str] = []
    for index in range(len(board.columns)):
        if not board.lossless(index) or board.keeps_text(index) or board.must_match(index):
            continue
        name, plain = board.name(index), board.name(board.reference(index) or 0)
        difference = board.difference(index)
        if difference is not None:
            clauses.append(f"{name} leaves {plain} at token {difference.index + 1}")
        elif board.compared(index):
            clauses.append(f"{name} wrote the same text as {plain}")
    return f"With other weights, {', '.join(clauses)}." if clauses else ""


def _recurrent(board: Scoreboard) -> str:
    """What columns whose models keep recurrent state do otherwise."""
    names = [board.name(i) for i, score in enumerate(board.scores) if score.recurrent]
    if not names:
        return ""
    whose = "" if len(names) == len(board.scores) else f" of {_listed(names)}"
    return (
        f"The model{whose} keeps recurrent state: its drafts are chains, and an earlier text's "
        "cache serves only texts that begin with all of it."
    )


def place(board: Scoreboard) -> str:
    """Which machine of a cluster the race runs on; "" where there is but one."""
    found = board.placed
    if found is None:
        return ""
    where = ", ".join(filter(None, [found.name, found.processor, counted(found.cores, "core")]))
    return f"on {where}. {found.note}".strip() if found.note else f"on {where}"


def ledger(board: Scoreboard) -> str:
    """What else the machine did during the race, in a line; whether that spoils its timings; "" of
    a race in which no column ran.
    """
    found = board.conditions
    if found is None or not any(score.steps for score in board.scores):
        return ""
    line = f"During the race {taken_by_others(found)}"
    low, middle, high = board.baseline.wobble
    if middle:
        half = f"{duration(low)} to {duration(high)}"
        line += f"; a plain step took {duration(middle)}, half of them {half}"
    advice = " The timings are unreliable: race again when the machine is less busy."
    reused = [board.name(i) for i, score in enumerate(board.scores) if score.reused]
    caches = f"{_listed(reused)} began from a reused cache" if reused else "no cache was reused"
    parts = [line, _warmth(found), caches, *_controls(board)]
    return f"{'; '.join(parts)}.{advice if doubt(board) else ''}"


def _controls(board: Scoreboard) -> list[str]:
    """How far chance alone went: what came of columns that do what the baseline does."""
    return [
        f"{board.name(i)} is a control: it worked like {board.name(board.baseline_index or 0)} "
        f"and reached {factor(board.speedup(i))}{span(board.gain(i))}"
        for i in range(len(board.columns))
        if board.control(i) and board.speedup(i)
    ]


def doubt(board: Scoreboard) -> str:
    """What leaves a race's timings in doubt, in few words; "" where nothing does."""
    found = board.conditions
    if found is None:
        return ""
    if (taken := found.others + found.page + found.stolen) > SPOILED:
        return f"The timings are unreliable: others took {taken:.0%} of the machine."
    _, middle, high = board.baseline.wobble
    changed = "The timings are unreliable: the machine's speed changed during the race."
    return changed if high > middle * (1 + SPREAD) else ""


def _warmth(found: Conditions) -> str:
    """Whether the models had computed before."""
    loaded = f"{counted(found.loaded, 'model')} loaded for it"
    warm = "not all widths warmed up" if found.cold else "all widths warmed up"
    return f"{loaded if found.loaded else 'models loaded before'}, {warm}"


def taken_by_others(found: Conditions) -> str:
    """How much of how many cores others took."""
    return (
        f"other programs took {found.others:.0%} of {counted(found.cores, 'core')}, this page "
        f"{found.page:.0%}, other guests of the host {found.stolen:.0%}"
    )


# --- one column ---------------------------------------------------------------------------------


def state(score: Score) -> str:
    """What the column is doing, or how it ended, in a word or two."""
    if score.state == "prefill":
        reading = f"reading the prompt: {score.prefilled} of {score.prompt_tokens} tokens"
        return reading if score.prompt_tokens else "waiting for its first token"
    return "incomplete" if score.state == "done" and score.expected else score.state


def ending(score: Score) -> str:
    """How many tokens a column wrote in this run, in what time of its own, and why it ended; ""
    before there is a clock to read.
    """
    if not score.seconds:
        return ""
    earlier = f", after {score.earlier:,} earlier ones" if score.earlier else ""
    reason = f"; it ended at: {score.reason}" if score.reason else ""
    return f"{counted(score.written, 'token')} in {duration(score.seconds)}{earlier}{reason}"


def pace(board: Scoreboard, index: int) -> str:
    """How a column's speed compares with the baseline's, in a few words."""
    if (shown := board.pace(index)) in _PACES:
        return _PACES[shown]
    # Why it is called neither faster nor slower; "" while it may still be.
    score = board.scores[index]
    if board.gain(index).known:
        return "no clear difference"
    if not board.speedup(index):
        return ""
    if score.clock != board.baseline.clock:
        return "another clock"
    return "too short to tell" if score.state in ENDED else ""


def kept(board: Scoreboard, index: int) -> str:
    """What became of a column's text, in two words; "" of what is compared with nothing."""
    score = board.scores[index]
    if score.judged and score.judged.verdict == "invalid":
        return "not valid"
    words = {"same": "same text", "differs": "another text", "allowed": "own text"}
    return words.get(board.sameness(index), "")


def brief(board: Scoreboard, index: int) -> str:
    """The one sentence on a column that has ended: what its text must not be, or else why it is as
    fast as it is.
    """
    score = board.scores[index]
    if score.state == "failed":
        return ""  # its message stands where its text would
    judged = score.judged
    if board.sameness(index) == "differs" or (judged and judged.verdict == "invalid"):
        return as_sentence(verdict(board, index))
    if judged and index == board.baseline_index:
        return as_sentence(validity(score))
    return as_sentence(_exception(board, index) or _price(board, index) or served(score))


def reason(board: Scoreboard, index: int) -> str:
    """Why a column is as fast as it is: tokens per forward over what a forward costs, beside what
    was predicted, and what was declined; "" while unknown and for the baseline itself.
    """
    score, exception = board.scores[index], _exception(board, index)
    if score.fed or board.control(index):
        return exception
    factors = exception or _factors(board, index) or served(score)
    if not factors:
        return ""
    unclear = "no clear difference here: " if board.gain(index).known else ""
    opening = {"faster": "", "slower": "slower here: "}.get(board.pace(index), unclear)
    parts = [opening + factors]
    if drafting := _drafting(board, score):
        parts.append(f"drafting takes {drafting:.2f} of them")
    # A prediction is over plain decoding on the column's own model. What was declined is told with
    # the prediction of then, which costs of passes as measured since would contradict.
    foretold = score.decision.declined or score.spec != board.baseline.spec
    if score.drafted and score.predicted and not foretold:
        parts.append(f"predicted {factor(score.predicted)}")
    return "; ".join(parts if exception else [*parts, *score.decision.declined])


def served(score: Score) -> str:
    """By whose clock a server's column is timed, and what it does not tell; "" of others."""
    if score.clock not in _CLOCKS:
        return ""
    clock = f"timed {_CLOCKS[score.clock]}; round trip {duration(score.round_trip)}"
    if score.steps and not score.times:
        clock += "; it sends no token counts, so the time per token is unknown"
    return clock + _counted(score.served)


def _counted(told: Served | None) -> str:
    """What a server's counters tell of drafts, and of whose requests."""
    if told is None or not (told.rounds or told.per_pass):
        return ""
    if not told.rounds:
        return f"; lately a pass of the server wrote {told.per_pass:.2f} tokens, for all its users"
    written = f"{1 + told.accepted / told.rounds:.2f} tokens a round"
    shares = ", ".join(f"{accepted / told.rounds:.0%}" for accepted in told.places)
    if shares:
        written += f", accepted by place {shares}"
    if not told.others:
        return f"; by its counters {written}"
    drafted = f"{told.accepted:,} of {told.drafted:,} drafted tokens accepted"
    return f"; others used it too, and its counters include them: {drafted}, {written}"


def _exception(board: Scoreboard, index: int) -> str:
    """What there is to say of a program's column, and of one that declined to guess."""
    score = board.scores[index]
    decision = score.decision
    if index == board.baseline_index or not board.speedup(index):
        return ""
    if score.fed:
        return f"{score.steps} sampling passes, {score.rows:,} rows, {duration(score.seconds)}"
    declined = ""
    if decision.plain and not score.drafted:
        declined = "; ".join(decision.declined) or decision.why
    if board.control(index):
        same = f"it worked like {board.name(board.baseline_index or 0)}"
        return f"{declined}: {same}" if declined else same
    return declined


def _factors(board: Scoreboard, index: int) -> str:
    """The two factors of a speed-up."""
    score, price = board.scores[index], _price(board, index)
    if not price or (not score.drafted and score.tokens_per_forward <= PLAIN):
        return price
    joint = "but" if board.pace(index) == "slower" else "and"
    return f"{score.tokens_per_forward:.2f} tokens per forward, {joint} {price}"


def _price(board: Scoreboard, index: int) -> str:
    """What a forward pass of a column costs; "" while unknown and for the baseline itself."""
    score, cost = board.scores[index], pass_cost(board, index)
    if not cost or index == board.baseline_index:
        return ""
    rows = f" of {score.mean_rows:.0f} rows" if score.drafted and score.mean_rows >= 1.5 else ""
    return f"a forward{rows} costs {cost:.2f} plain steps"


def _drafting(board: Scoreboard, score: Score) -> float:
    """Plain steps that drafting takes in a round; 0 below a twentieth."""
    plain = board.baseline.tpot
    if not plain or not score.passes:
        return 0.0
    steps = score.parts.get("draft", 0.0) / score.passes / plain
    return steps if steps >= 0.05 else 0.0


def outcome(board: Scoreboard, index: int) -> str:
    """What became of a column, for the last cell of its line in a table; "" while unknown."""
    if board.scores[index].message:
        return "failed"
    role = "the baseline" if index == board.baseline_index else ""
    return "; ".join(filter(None, (role, verdict(board, index))))


def verdict(board: Scoreboard, index: int) -> str:
    """Whether column `index` wrote what it should have; "" while that is unknown."""
    return "; ".join(filter(None, (_comparison(board, index), validity(board.scores[index]))))


def validity(score: Score) -> str:
    """What an independent validator says of a text that its grammar let end; "" of any other."""
    judged = score.judged
    if judged is None:
        return ""
    later = ", ".join(judged.later)
    if judged.verdict == "valid":
        return f"valid against its schema{f', {later} checked afterwards' if later else ''}"
    if judged.verdict == "unchecked":
        return f"not checked against its schema: {judged.why}"
    place = f" at {judged.pointer}" if judged.pointer else ""
    left = f"the grammar left {later} to this check"
    blame = "the grammar engine let it through" if judged.forbidden else left
    return f"not valid against its schema{place}: {judged.why}; {blame}"


def _comparison(board: Scoreboard, index: int) -> str:
    """What became of a column's text beside its reference's."""
    reference, score = board.reference(index), board.scores[index]
    if reference is None or not (score.steps and board.scores[reference].steps):
        return ""
    name, base = board.name(reference), board.scores[reference]
    if not board.compared(index):
        known = score.tokenizer and base.tokenizer and score.tokenizer != base.tokenizer
        why = "its tokenizer is different" if known else "its tokens are not known"
        return f"not compared with {name}: {why}"
    difference = board.difference(index)
    if not (score.keeps_text or score.shifts) and board.draws_alike(index):
        text = f"a different text from token {difference.index + 1} on" if difference else ""
        return f"same distribution as {name}, {text or 'so far the same text'}"
    if difference is None:
        return _identical(board, index, reference)
    place = f"{name} at token {difference.index + 1}"
    if not board.may_differ(index):
        apart = f", where the two best scores lay {difference.gap:.2g} apart"
        return f"differs from {place}{apart if isfinite(difference.gap) else ''}"
    gap = f" (gap {difference.gap:.2g})" if isfinite(difference.gap) else ""
    demand = _demand(board, index, reference)
    targets = _own_target(score, base)
    because = f", {'; '.join([demand, *targets])}" if demand else f"{gap}: {' and '.join(targets)}"
    return f"leaves {place}{because}"


def _identical(board: Scoreboard, index: int, reference: int) -> str:
    score, base, name = board.scores[index], board.scores[reference], board.name(reference)
    unit, compared = "character" if board.by_text(index) else "token", board.compared(index)
    tokens = counted(compared, unit)
    if not score.state == base.state == "done":
        return f"identical to {name} so far ({tokens})"
    if compared < len(board.sides(index)[1]):
        return f"identical to {name} as far as it went ({tokens})"
    return f"identical to {name} ({tokens})"


def _demand(board: Scoreboard, index: int, reference: int) -> str:
    """What makes a column leave its reference on the same weights."""
    column = board.columns[index]
    if board.scores[index].shifts:
        return "after its context was shifted"
    if column.strategy.single:
        return "as its text is generated, not fed"
    if not board.scores[index].keeps_text:
        return "as it promises a distribution, not a text"
    return "as its grammar demands" if column.grammar != board.columns[reference].grammar else ""


def _own_target(score: Score, base: Score) -> list[str]:
    """In what a column's target is another than its reference's, a clause each."""
    if not score.spec or not base.spec:
        return ["what it runs on is not known"]
    return [
        clause.format(score.spec.get(part, "unknown"))
        for part, clause in _OWN_TARGET.items()
        if score.spec.get(part, "") != base.spec.get(part, "")
    ]


def remark(score: Score) -> str:
    """What was decided for the column, what a grammar cost, what a cache spared, what became of the
    context.
    """
    why = "" if score.decision.plain else as_sentence(score.decision.why)
    parts = [why, _promise(score), _grammar(score)]
    if score.expected:
        parts.append(f"Incomplete: the grammar still expects {score.expected}.")
    if score.reused:
        parts.append(f"{score.reused} of {score.prompt_tokens + score.earlier} tokens reused.")
    if score.shifts:
        dropped = sum(shift.dropped for shift in score.shifts)
        parts.append(
            f"The context was full after {score.shifts[0].at} tokens: {dropped} older tokens were "
            "dropped, and from there on the text is no longer that of the whole context. Dropped "
            f"last: {shortened(score.shifts[-1].text)}"
        )
    return " ".join(filter(None, parts))


def _promise(score: Score) -> str:
    """What either rule of verification accepts of the draft, where both distributions were seen."""
    if not score.overlaps:
        return ""
    drawn, keyed = mean(score.overlaps), mean(same / (2 - same) for same in score.overlaps)
    return (
        f"A drawn token agreed with the target to 1 - TV = {drawn:.2f} on average, which is what "
        f"rejection sampling accepts; keeping the text accepts {keyed:.2f} at least."
    )


def _grammar(score: Score) -> str:
    """What the grammar's masks took, how much of it showed, and how many tokens it forced."""
    if not score.masks or not score.seconds:
        return ""
    p50, p99 = (duration(float(value)) for value in np.percentile(score.masks, (50, 99)))
    return (
        f"Grammar: compiled in {duration(score.compiled)}; {len(score.masks)} masks, "
        f"{duration(mean(score.masks))} on average (p50 {p50}, p99 {p99}, longest "
        f"{duration(max(score.masks))}), {score.parts.get('mask', 0.0) / score.seconds:.1%} of the "
        f"time not hidden behind the passes; {score.forced} of {score.written} tokens forced."
    )


def as_sentence(clause: str) -> str:
    """A clause with a capital and a full stop; "" of none."""
    return f"{clause[0].upper()}{clause[1:].removesuffix('.')}." if clause else ""


def shortened(text: str, most: int = 120) -> str:
    """`text` in quotes, its middle left out if it is long."""
    half = most // 2
    return f'"{text}"' if len(text) <= most else f'"{text[:half]} [...] {text[-half:]}"'
