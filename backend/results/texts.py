"""Which texts of a race are the same: the one definition, for races, benchmarks and `verify`.

A text that ended by itself, or at the limit that all share, is whole: equal to another whole one if
they agree to the end of both. One that was stopped, or ended at the photo finish, may only be the
same so far.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from backend.results.scoreboard import Score, Scoreboard

#: Of a column's text: whole, and another column's; another column's as far as it goes; not that of
#: the column that it must match; one of its own; "": there is nothing to compare.
Sameness = Literal["same", "so far", "changed", "different", ""]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two texts beside one another: over how many of what they agree, whether they part behind
    that, where one of them may have ended, and whether both are whole. `gap` is the distance
    between the other text's two best scores there: near zero means that rounding decided, anything
    else a real difference; infinite: unknown.
    """

    agreed: int
    unit: Literal["token", "character"]
    parted: bool
    whole: bool
    gap: float = inf


@dataclass(frozen=True, slots=True)
class Text:
    """What became of a column's text. `like` is the first column that wrote the same; its own
    number if none did before it; None: it has no text. `other` is the column of `comparison`: that
    one, or the one from whose text this one departs.
    """

    sameness: Sameness = ""
    like: int | None = None
    other: int | None = None
    comparison: Comparison | None = None


def compare(ours: Score, theirs: Score) -> Comparison:
    """Our text beside another: by token where a token's id means the same in both. Texts that are
    whole and alike letter for letter are equal, whichever tokens spell them.
    """
    vocabulary = ours.started.tokenizer
    by_token = bool(vocabulary) and vocabulary == theirs.started.tokenizer
    by_token &= all(len(score.tokens) == score.length for score in (ours, theirs))
    # A limit of tokens is the same limit for those who count alike, and for the same text.
    alike = by_token or ours.text == theirs.text
    ours_whole, theirs_whole = (
        score.state == "done"
        and score.reason != "photo finish"
        and (alike or score.reason != "token limit")
        for score in (ours, theirs)
    )
    whole = ours_whole and theirs_whole
    a: Sequence[int | str] = ours.tokens if by_token else ours.text
    b: Sequence[int | str] = theirs.tokens if by_token else theirs.text
    agreed = min(len(a), len(b))
    ended = ours_whole if len(a) < len(b) else theirs_whole
    parted = len(a) != len(b) and ended
    if a[:agreed] != b[:agreed]:
        parted = True
        agreed = next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    if whole and ours.text == theirs.text:
        parted = False
    gap = theirs.gaps[agreed] if parted and by_token and agreed < len(theirs.gaps) else inf
    return Comparison(agreed, "token" if by_token else "character", parted, whole, gap)


def same_work(board: Scoreboard, one: int, other: int) -> bool:
    """True if both columns run under the same grammar and are known to run on the same weights, on
    the same engine, at the same precision; of servers, if they are one column twice.
    """
    columns, spec = board.columns, board.scores[one].started.spec
    alike = columns[one].grammar == columns[other].grammar
    same_weights = bool(spec) and spec == board.scores[other].started.spec
    return alike and (same_weights or columns[one] == columns[other])


def texts_of(board: Scoreboard) -> list[Text]:
    """Each column's text beside the others', in classes in which no two texts differ. A column that
    promises the plain text must write what those before it wrote that have its grammar and its
    weights, a plain one first.
    """
    base, columns, scores = board.baseline_index, board.columns, board.scores
    order = sorted(
        (i for i, score in enumerate(scores) if score.steps and score.state != "failed"),
        key=lambda i: (i != base, not columns[i].plain, i),
    )
    texts = [Text() for _ in scores]
    for at, index in enumerate(order):
        score = scores[index]
        comparisons = {i: compare(score, scores[i]) for i in order[:at]}
        others = [i for i, each in comparisons.items() if each.parted]
        pairs = ((i, scores[i].started) for i in order[:at] if texts[i].sameness != "changed")
        peers = [i for i, started in pairs if started.lossless and score.started.lossless]
        peers = [i for i in peers if same_work(board, i, index)]
        changed = next((i for i in peers if i in others), None)
        # The class of a peer comes first: a text that has just begun is like many.
        likes = dict.fromkeys(texts[i].like for i in (*peers, *order[:at]))
        like = next((i for i in likes if i not in {texts[i].like for i in others}), None)
        if changed is not None:
            other, sameness = changed, "changed"
        elif like is None:
            other, sameness = (others[0], "different") if others else (None, "")
        else:
            other, sameness = like, "same" if comparisons[like].whole else "so far"
        comparison = None if other is None else comparisons[other]
        texts[index] = Text(sameness, index if like is None else like, other, comparison)
    return texts
