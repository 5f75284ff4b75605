"""A race as its reader sees it: every column's score, and how the columns compare."""

from collections.abc import Sequence
from dataclasses import dataclass

from backend.events import Event, Preparing
from backend.metrics import Score
from backend.strategies import BASELINE, Strategy

#: Why a column that is not lossless leaves KV reuse; True for a program generated as a whole.
_DEMANDS = {False: "as its grammar demands", True: "as its text is generated, not fed"}

ENDED = ("done", "stopped", "failed")


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token at which a column departs from the baseline.

    `gap` is the distance between the baseline's two best scores there: near zero means a numeric
    tie, anything else a real difference.
    """

    index: int
    gap: float


class Scoreboard:
    """Fold a race's events in with `add`; read `scores`, aligned with `columns`."""

    def __init__(self, columns: Sequence[Strategy]) -> None:
        self.columns = tuple(columns)
        self.scores = [Score() for _ in self.columns]
        self.preparing = ""

    def add(self, event: Event) -> None:
        if isinstance(event, Preparing):
            self.preparing = event.text
            return
        self.preparing = ""
        self.scores[event.column].add(event)

    @property
    def ended(self) -> bool:
        return all(score.state in ENDED for score in self.scores)

    @property
    def baseline(self) -> Score | None:
        """The KV-reuse column's score, if it runs and has not failed."""
        for strategy, score in zip(self.columns, self.scores, strict=True):
            if strategy.name == BASELINE and score.state != "failed":
                return score
        return None

    def difference(self, index: int) -> Difference | None:
        """Where column `index` departs from KV reuse; None as far as both have come."""
        base = self.baseline
        if base is None:
            return None
        pairs = zip(self.scores[index].tokens, base.tokens, strict=False)
        for i, (ours, theirs) in enumerate(pairs):
            if ours != theirs:
                return Difference(i, base.gaps[i])
        return None

    def verdict(self, index: int) -> str:
        """One sentence on whether column `index` wrote what KV reuse wrote; "" if unknown."""
        base, score, strategy = self.baseline, self.scores[index], self.columns[index]
        if base is None or score is base or not score.tokens or not base.tokens:
            return ""
        found = self.difference(index)
        if found is None:
            compared = min(len(score.tokens), len(base.tokens))
            if not score.state == base.state == "done":
                return f"identical to KV reuse so far ({compared} tokens)"
            if len(score.tokens) < len(base.tokens):
                return f"identical to KV reuse as far as it went ({compared} tokens)"
            return f"identical to KV reuse ({compared} tokens)"
        place = f"KV reuse at token {found.index + 1}"
        if not self.excused(index):
            return f"differs from {place}, where the two best scores lay {found.gap:.2g} apart"
        why = "after its context was shifted" if score.shifts else _DEMANDS[strategy.single]
        return f"leaves {place}, {why}"

    def excused(self, index: int) -> bool:
        """True if the column may differ from KV reuse where it does."""
        found, score = self.difference(index), self.scores[index]
        shifted = score.shifts and found is not None and found.index >= score.shifts[0].at
        return bool(shifted) or not self.columns[index].lossless

    def speedup(self, index: int) -> float:
        """Baseline TPOT over this column's; 0 while unknown."""
        base = self.baseline
        return 0.0 if base is None else self.scores[index].speedup_over(base)
