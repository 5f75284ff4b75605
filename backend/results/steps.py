"""The inside of one step of a column, as plain JSON values and sentences.

The page's inspector shows them unchanged: every word is made here.
"""

from bisect import bisect_right
from collections.abc import Sequence
from math import isfinite
from typing import Any, Literal

from backend.events import Proposed, Step
from backend.results.figures import counted, duration
from backend.results.metrics import PART_NAMES, PARTS, Score
from backend.results.scoreboard import Scoreboard

View = dict[str, Any]

#: The fate of a proposed token: committed; not what the target chose; after a rejected one, or
#: after the end of the text; ruled out by a grammar before the pass.
Fate = Literal["accepted", "rejected", "not reached", "cut"]

#: Entries of a list that are shown: a recording may hold many more.
MOST = 400

#: What a moment is that was no step, by the origin of its text.
_OTHER = {
    "fixed": "Fixed text of the program",
}
_HELD = "Text held back while it could be a stop string"


def step_view(board: Scoreboard, column: int, index: int) -> View:
    """The inside of a column's moment, `index` counting its `Score.moments` from 0.

    The same keys for every moment, empty where there is nothing to say: "title" and "sentences";
    "tokens", those committed; "proposed", a tree by the index of each one's "parent" (-1: the text
    so far) and its "depth"; "chosen", what the target chose behind the accepted ones, and its
    "parent", None if the text ended; "shape", "chain" or "tree"; "window", lookahead's levels, and
    "hits", the n-grams that its pool had; "parts", the time by part in ms; "rows" that it computed;
    "expected", what all of it should take, None where that is unknown; "masks". Lists have `MOST`
    entries at most. Raises IndexError if there is no such moment.
    """
    score = board.scores[column]
    if not 0 <= index < len(score.moments):
        raise IndexError(f"the column has {len(score.moments)} moments, not one numbered {index}")
    moment, step = score.moments[index], score.step_at.get(index)
    seen = score.proposed_at.get(index) or Proposed(column, [], [], [], [], "")
    guesses, expected = _proposed(board, column, seen), _expected(score, index)
    view: View = {
        "column": board.name(column),
        "moment": index,
        "title": _title(score, index),
        "clock": f"at {duration(moment.clock)} on its own clock",
        "tokens": _tokens(score, index, seen)[:MOST],
        "proposed": guesses[:MOST],
        "chosen": {"text": seen.chosen, "parent": _last(seen)} if seen.chosen else None,
        "shape": "tree" if seen.parents else "chain" if len(seen.tokens) > seen.cut else "",
        "window": [level[:MOST] for level in seen.window],
        "hits": _leaves(seen) if seen.window else 0,
        "parts": _parts(step),
        "rows": step.rows if step else 0,
        "expected": None if expected is None else round(expected * 1e3, 4),
        "masks": _masks(step, seen)[:MOST],
    }
    said = [_offer(guesses, seen), _choice(seen, guesses), _cost(score, index)]
    said += [_lookahead(seen), _constrained(seen), _departure(board, column, index)]
    return view | {"sentences": [sentence for sentence in said if sentence]}


def first_differences(board: Scoreboard) -> list[tuple[int, int]]:
    """Of each column that departs from its reference, the column and the moment where it does."""
    found = ((column, board.difference(column)) for column in range(len(board.columns)))
    return [
        (column, moment_of(board.scores[column], difference.index))
        for column, difference in found
        if difference is not None
    ]


def moment_of(score: Score, token: int) -> int:
    """The moment that showed the answer's token number `token`, from 0. Raises IndexError if it is
    not written yet.
    """
    # Of moments that begin at the same token, the last one committed it.
    index = max(bisect_right(score.moments, token, key=lambda moment: moment.start) - 1, 0)
    if token >= score.length or not score.moments:
        raise IndexError(f"the answer has {score.length} tokens, not one numbered {token}")
    return index


# --- values -------------------------------------------------------------------------------------


def _title(score: Score, index: int) -> str:
    step = score.step_at.get(index)
    if step is None:
        (origin, _), *_ = score.moments[index].spans
        return _OTHER.get(origin, _HELD)
    number, count = score.moments[index].step, counted(len(step.origins), "token")
    return f"Pass {number} of {score.steps}: {count}"


def _texts(score: Score, index: int) -> list[str]:
    """The texts of the tokens that a moment committed; fewer where they are not known."""
    seen, spans = score.proposed_at.get(index), score.moments[index].spans
    if seen is not None:
        return seen.committed
    return [text for _, text in spans] if len(spans) == score.moments[index].tokens else []


def _tokens(score: Score, index: int, seen: Proposed) -> list[View]:
    """The committed tokens; "gap" between the two best scores there, None: unknown; "top" as
    [text, share in words, probability].
    """
    step = score.step_at.get(index)
    if step is None:
        return []
    texts = _texts(score, index)
    gaps = [gap if isfinite(gap) else None for gap in step.gaps]
    return [
        {
            "text": texts[i] if i < len(texts) else "",
            "origin": origin,
            "gap": gaps[i] if i < len(gaps) else None,
            "top": [
                [text, f"{p:.1%}" if p >= 0.001 else "under 0.1%", p]
                for text, p in (seen.top[i] if i < len(seen.top) else ())
            ],
        }
        for i, origin in enumerate(step.origins)
    ]


def _proposed(board: Scoreboard, column: int, seen: Proposed) -> list[View]:
    """Each proposed token: who proposed it, what became of it, where it stands in the tree. Those
    that were cut stand nowhere.
    """
    title = board.columns[column].strategy.title
    by = [name or title for name, count in seen.by for _ in range(count)]
    parents, fates, depths = _parents(seen), _fates(seen), list[int]()
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    cut = [None] * seen.cut
    return [
        {"text": text, "by": name, "fate": fate, "parent": parent, "depth": depth}
        for text, name, fate, parent, depth in zip(
            seen.tokens, by, fates, [*parents, *cut], [*depths, *cut], strict=True
        )
    ]


def _parents(seen: Proposed) -> Sequence[int]:
    """Parent links of what was verified, of a chain too."""
    return seen.parents or range(-1, len(seen.tokens) - seen.cut - 1)


def _fates(seen: Proposed) -> list[Fate]:
    """What became of each proposed token.

    The target chose a token behind the text so far and behind each accepted one, but behind the
    last of these only if the text went on.
    """
    path = set(seen.path)
    chose = {-1, *seen.path} if seen.chosen else {-1, *seen.path[:-1]}
    fates: list[Fate] = []
    for i, parent in enumerate(_parents(seen)):
        missed: Fate = "rejected" if parent in chose else "not reached"
        fates.append("accepted" if i in path else missed)
    fates.extend("cut" for _ in range(seen.cut))
    return fates


def _last(seen: Proposed) -> int:
    """The last token that was accepted; -1: the text so far."""
    return seen.path[-1] if seen.path else -1


def _leaves(seen: Proposed) -> int:
    """How many continuations the tree holds."""
    parents = _parents(seen)
    return len(set(range(len(parents))) - set(parents))


def _parts(step: Step | None) -> list[list[Any]]:
    """The step's time by part: name, milliseconds, and both in words."""
    seconds = step.seconds if step else {}
    return [
        [PART_NAMES[part], round(took * 1e3, 4), f"{PART_NAMES[part]} {duration(took)}"]
        for part in PARTS
        if (took := seconds.get(part))
    ]


def _expected(score: Score, index: int) -> float | None:
    """Seconds that a pass after the first step's should take, by the costs known now."""
    step, moment = score.step_at.get(index), score.moments[index]
    if step is None or not (step.rows and moment.step > 1 and score.costs.known):
        return None
    length = moment.start
    width = score.commits[moment.step - 2].rows if moment.step > 2 else 1
    return score.expected_of(step.rows, step.calls, length, width)


def _masks(step: Step | None, seen: Proposed) -> list[View]:
    """Each mask: the text of the token that it stands behind ("": the text so far), how many
    tokens it allowed, and what it took in ms, None where it was there already.
    """
    seconds = step.masks if step else []
    behind = ["", *seen.tokens]
    return [
        {
            "behind": behind[row],
            "allowed": allowed,
            "ms": round(seconds[row] * 1e3, 4) if row < len(seconds) else None,
        }
        for row, allowed in enumerate(seen.allowed)
    ]


# --- sentences ----------------------------------------------------------------------------------


def _offer(guesses: Sequence[View], seen: Proposed) -> str:
    """How many tokens were guessed, by what, and how many were accepted."""
    if not guesses:
        return ""
    names = list(dict.fromkeys(guess["by"] for guess in guesses))
    offers = [f"{name} {sum(guess['by'] == name for guess in guesses)}" for name in names]
    offer = f"{counted(len(guesses), 'token')} guessed ({', '.join(offers)})"
    were = "were" if len(seen.path) != 1 else "was"
    cut = f", {seen.cut} not allowed by the grammar" if seen.cut else ""
    return f"{offer}: {len(seen.path) or 'none'} {were} accepted{cut}."


def _choice(seen: Proposed, guesses: Sequence[View]) -> str:
    """What the target chose at the end, and which guess it rejected."""
    if not seen.chosen:
        return ""
    wrong = [guess["text"] for guess in guesses if guess["parent"] == _last(seen)]
    if not wrong:
        return f"The model added {_quoted(seen.chosen)}." if guesses else ""
    instead = " or ".join(map(_quoted, wrong[:MOST]))
    return f"The model chose {_quoted(seen.chosen)}, not {instead}."


def _lookahead(seen: Proposed) -> str:
    if not seen.window:
        return ""
    rows = sum(map(len, seen.window))
    hits = counted(_leaves(seen), "n-gram")
    return f"The pool offered {hits}; {counted(rows, 'row')} of the window searched for new ones."


def _cost(score: Score, index: int) -> str:
    """The time of the pass, and over how many rows."""
    step, moment = score.step_at.get(index), score.moments[index]
    if step is None:
        return ""
    took = f"It took {duration(step.seconds['total'])} for {counted(moment.tokens, 'token')}"
    if moment.step == 1:
        return f"{took}, with what was left of the prompt."
    return f"{took}, over {counted(step.rows, 'row')}." if step.rows else f"{took}."


def _constrained(seen: Proposed) -> str:
    """How many tokens the grammar allowed where the step began."""
    if not seen.allowed:
        return ""
    return f"The grammar allowed {counted(seen.allowed[0], 'next token')}."


def _departure(board: Scoreboard, column: int, index: int) -> str:
    """That the column differs from its reference from here on, and what that wrote."""
    difference, reference = board.difference(column), board.reference(column)
    if difference is None or reference is None:
        return ""
    if moment_of(board.scores[column], difference.index) != index:
        return ""
    wrote = _text_of(board.scores[reference], difference.index)
    here = f"From token {difference.index + 1} on it differs from {board.name(reference)}"
    return f"{here}, which wrote {_quoted(wrote)}." if wrote else f"{here}."


def _text_of(score: Score, token: int) -> str:
    """The text of the answer's token number `token`; "" if it is not known."""
    index = moment_of(score, token)
    first = score.moments[index].start
    texts = _texts(score, index)
    return texts[token - first] if first <= token < first + len(texts) else ""


def _quoted(text: str) -> str:
    """A token's text so that its spaces show, as in assets/inspector.js."""
    shown = text if text.strip() else text.replace(" ", "\N{OPEN BOX}")
    shown = shown.replace("\n", "\N{RETURN SYMBOL}").replace("\t", "\N{RIGHTWARDS ARROW TO BAR}")
    return f"\N{LEFT DOUBLE QUOTATION MARK}{shown}\N{RIGHT DOUBLE QUOTATION MARK}"
